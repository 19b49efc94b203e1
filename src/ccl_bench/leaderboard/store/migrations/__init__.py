"""Steps from one form of the index's tables to the next, applied by alembic in order."""
