"""Migrations of the index's tables, which alembic applies in order."""

LATEST = "0007"
"""The last revision, which the tables of this version have."""
