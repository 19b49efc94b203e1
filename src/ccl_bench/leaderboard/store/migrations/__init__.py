"""Migrations of the index's tables, which alembic applies in order."""

LATEST = "0006"
"""The last revision, which the tables of this version have."""
