"""Rows that were reported elsewhere, the lengths and load of serving, and the spread of repeated numbers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_RUNS = {
    "input_len": sa.Integer,
    "output_len": sa.Integer,
    "concurrency": sa.Integer,
    "source": sa.String(40),
    "variant": sa.Text,
    "curve": sa.String(32),
}
_VALUES = {"low": sa.Double, "high": sa.Double, "repeats": sa.Integer}


def upgrade() -> None:
    """Create the table and columns, and mark every run for reading, which fills them."""
    for name, kind in _RUNS.items():
        op.add_column("runs", sa.Column(name, kind))
    for name, kind in _VALUES.items():
        op.add_column("metric_values", sa.Column(name, kind))
    op.create_index("ix_runs_source", "runs", ["source"])
    op.create_table(
        "sources",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("stamp", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_sources"),
    )
    op.execute("UPDATE runs SET history_stamp = 'unread'")


def downgrade() -> None:
    """Drop them with their counts, and mark every run for reading."""
    from ccl_bench.leaderboard.store.store import replace_reported

    connection = op.get_bind()
    for name in list(connection.execute(sa.text("SELECT name FROM sources")).scalars()):
        replace_reported(connection, name, None, "")
    op.drop_table("sources")
    op.drop_index("ix_runs_source", "runs")
    for name in _VALUES:
        op.drop_column("metric_values", name)
    for name in _RUNS:
        op.drop_column("runs", name)
    op.execute("DELETE FROM run_counts WHERE field IN ('input_len', 'output_len')")
    op.execute("UPDATE runs SET history_stamp = 'unread'")
