"""Counts of runs and of ranked numbers, instead of a stored rank for every number."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_HEADINGS = ("submitted_at", "model", "hardware", "device_count", "framework", "communication_library")
_ORDER = ["metric", "better", "is_listed", "value", "run"]
_BEFORE = {
    "runs": (["state", "phase", "model"], ["workload", "state"]),
    "metric_values": (["metric", "value"],),
}
_AFTER = {
    "runs": (
        ["workload", "is_listed", "submitted_at"],
        ["is_listed", "phase", "submitted_at", "id"],
        *(["is_listed", name, "id"] for name in _HEADINGS),
    ),
    "metric_values": (["comparable", "rank_key"], _ORDER, ["workload", *_ORDER]),
}
"""Columns of the indices of a table before and after."""


def upgrade() -> None:
    """Create the tables and columns, and mark every run for reading, which fills them."""
    for table, indices in _BEFORE.items():
        for columns in indices:
            op.drop_index(_name(table, columns), table)
    op.add_column("runs", sa.Column("is_listed", sa.Integer, nullable=False, server_default="0"))
    for column in (
        sa.Column("workload", sa.String(64), nullable=False, server_default=""),
        sa.Column("is_listed", sa.Integer, nullable=False, server_default="0"),
        sa.Column("comparable", sa.String(32)),
        sa.Column("rank_key", sa.BigInteger, nullable=False, server_default="0"),
    ):
        op.add_column("metric_values", column)
    for name in ("place", "ranked"):
        op.drop_column("metric_values", name)
    _create_indices(_AFTER)
    op.create_table(
        "run_counts",
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("field", sa.String(32), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("phase", "field", "value", name="pk_run_counts"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rank_counts",
        sa.Column("comparable", sa.String(32), nullable=False),
        sa.Column("level", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("span", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("comparable", "level", "span", name="pk_rank_counts"),
        sqlite_with_rowid=False,
    )
    _have_runs_read_anew()


def downgrade() -> None:
    """Drop the counts; an older version reads every run again and writes ranks."""
    for table, indices in _AFTER.items():
        for columns in indices:
            op.drop_index(_name(table, columns), table)
    for name in ("workload", "is_listed", "comparable", "rank_key"):
        op.drop_column("metric_values", name)
    op.drop_column("runs", "is_listed")
    for name in ("place", "ranked"):
        op.add_column("metric_values", sa.Column(name, sa.Integer))
    for table in ("rank_counts", "run_counts"):
        op.drop_table(table)
    _create_indices(_BEFORE)
    _have_runs_read_anew()


def _create_indices(indices_by_table: dict[str, tuple[list[str], ...]]) -> None:
    for table, indices in indices_by_table.items():
        for columns in indices:
            op.create_index(_name(table, columns), table, columns)


def _name(table: str, columns: list[str]) -> str:
    return f"ix_{table}_{'_'.join(columns)}"


def _have_runs_read_anew() -> None:
    runs = sa.table("runs", sa.column("history_stamp"))
    op.execute(runs.update().values(history_stamp="not counted"))
