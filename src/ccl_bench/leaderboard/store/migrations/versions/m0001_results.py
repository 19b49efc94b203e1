"""The index of results: workloads, runs and their numbers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "workloads",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("fields", sa.Text, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_workloads"),
    )
    _create_runs()
    _create_values()


def downgrade() -> None:
    """Drop the tables; the next start rebuilds them from the files."""
    for table in ("metric_values", "runs", "workloads"):
        op.drop_table(table)


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("submitted_at", sa.Text, nullable=False),
        sa.Column("submitter", sa.Text, nullable=False),
        sa.Column("superseded_by", sa.String(64)),
        sa.Column("workload", sa.String(64), nullable=False),
        sa.Column("is_rankable", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text) for name in ("phase", "model", "precision")),
        *(sa.Column(name, sa.Integer) for name in ("batch_size", "seq_len")),
        sa.Column("hardware", sa.Text),
        *(sa.Column(name, sa.Integer) for name in ("device_count", "node_count")),
        *(sa.Column(name, sa.Text) for name in ("framework", "framework_version")),
        *(sa.Column(name, sa.Text) for name in ("communication_library", "communication_version")),
        *(sa.Column(name, sa.Integer) for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")),
        sa.Column("tool_version", sa.Text, nullable=False),
        sa.Column("trace_url", sa.Text),
        sa.Column("has_report", sa.Integer, nullable=False),
        sa.Column("searched", sa.Text, nullable=False),
        sa.Column("history_stamp", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.ForeignKeyConstraint(["workload"], ["workloads.key"], name="fk_runs_workload"),
    )
    for columns in (["state", "phase", "model"], ["workload", "state"], ["state", "submitted_at"]):
        op.create_index(f"ix_runs_{'_'.join(columns)}", "runs", columns)


def _create_values() -> None:
    op.create_table(
        "metric_values",
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("metric", sa.String(100), nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("better", sa.String(8), nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("measured", sa.Text, nullable=False),
        sa.Column("errors", sa.Integer, nullable=False),
        sa.Column("doubts", sa.Integer, nullable=False),
        sa.Column("place", sa.Integer),
        sa.Column("ranked", sa.Integer),
        sa.PrimaryKeyConstraint("run", "metric", name="pk_metric_values"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_metric_values_run"),
    )
    op.create_index("ix_metric_values_metric_value", "metric_values", ["metric", "value"])
