"""Migrations of the index's tables, which alembic applies in order."""
