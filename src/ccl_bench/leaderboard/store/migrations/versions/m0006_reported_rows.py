"""Rows that were reported elsewhere, the lengths and load of serving, and the spread of repeated numbers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_RUNS: dict[str, Any] = {
    "input_len": sa.Integer,
    "output_len": sa.Integer,
    "concurrency": sa.Integer,
    "source": sa.String(40),
    "variant": sa.Text,
    "curve": sa.String(32),
}
_GROUPED = (
    *("is_listed", "phase", "model", "input_len", "output_len", "precision", "batch_size", "seq_len"),
    *("hardware", "device_count", "node_count", "framework", "communication_library"),
    *("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "workload", "state", "source"),
    *("curve", "submitted_at", "id"),
)
_TEXTS = ("phase", "model", "precision", "hardware", "framework", "communication_library")
_OF_WORKLOAD = ["workload", "metric", "better", "is_listed", "value", "run"]
_VALUES: dict[str, Any] = {"low": sa.Double, "high": sa.Double, "repeats": sa.Integer}


def upgrade() -> None:
    """Create the table and columns, and mark every run for reading, which fills them."""
    for name, kind in _RUNS.items():
        op.add_column("runs", sa.Column(name, kind))
    for name, kind in _VALUES.items():
        op.add_column("metric_values", sa.Column(name, kind))
    op.create_index("ix_runs_source", "runs", ["source"])
    # PostgreSQL takes 2,700 bytes in an entry of an index; the runs are read anew anyway.
    for name in _TEXTS:
        op.execute(f"UPDATE runs SET {name} = substr({name}, 1, 90)")  # noqa: S608  a name from above
    op.create_index("ix_runs_groups", "runs", _GROUPED)
    op.drop_index(f"ix_metric_values_{'_'.join(_OF_WORKLOAD)}", "metric_values")
    op.create_index("ix_metric_values_of_workload", "metric_values", [*_OF_WORKLOAD, "errors", "unit"])
    op.create_table(
        "sources",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("stamp", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_sources"),
    )
    _have_runs_read_anew()


def downgrade() -> None:
    """Drop them, with the rows that were reported elsewhere, and mark every run for reading."""
    op.execute("DELETE FROM metric_values WHERE run IN (SELECT id FROM runs WHERE source IS NOT NULL)")
    op.execute("DELETE FROM runs WHERE source IS NOT NULL")
    op.execute("DELETE FROM workloads WHERE key NOT IN (SELECT workload FROM runs)")
    op.drop_table("sources")
    op.drop_index("ix_runs_source", "runs")
    op.drop_index("ix_metric_values_of_workload", "metric_values")
    op.create_index(f"ix_metric_values_{'_'.join(_OF_WORKLOAD)}", "metric_values", _OF_WORKLOAD)
    op.drop_index("ix_runs_groups", "runs")
    for name in _VALUES:
        op.drop_column("metric_values", name)
    for name in _RUNS:
        op.drop_column("runs", name)
    _have_runs_read_anew()


def _have_runs_read_anew() -> None:
    """Empty the counts, which count other fields now, and have every run read, which counts it."""
    op.execute("DELETE FROM run_counts")
    op.execute("DELETE FROM rank_counts")
    op.execute("UPDATE metric_values SET comparable = NULL")
    op.execute("UPDATE runs SET is_listed = 0, history_stamp = 'unread'")
