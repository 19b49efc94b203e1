"""Groups of runs that agree in what filters and questions name, and the interactivity of a run in its row."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_TEXTS = ("phase", "model", "precision", "hardware", "framework", "communication_library")
_GROUPED = (
    *("phase", "model", "input_len", "output_len", "precision", "batch_size", "seq_len"),
    *("hardware", "device_count", "node_count", "framework", "communication_library"),
    *("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "workload"),
)
_BEFORE = ["is_listed", *_GROUPED, "state", "source", "curve", "submitted_at", "id"]
"""Columns of the index of groups before."""


def upgrade() -> None:
    """Create the table and the column, and fill both from the runs and numbers that are there."""
    op.add_column("runs", sa.Column("interactivity", sa.Double))
    op.execute(
        "UPDATE runs SET interactivity = (SELECT value FROM metric_values"
        " WHERE metric_values.run = runs.id AND metric_values.metric = 'interactivity')"
    )
    op.drop_index("ix_runs_groups", "runs")
    op.create_index("ix_runs_groups", "runs", [*_BEFORE, "interactivity"])
    table = op.create_table(
        "run_groups",
        sa.Column("key", sa.String(32), nullable=False),
        sa.Column("is_listed", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("source", sa.String(40)),
        *(sa.Column(name, _type(name)) for name in _GROUPED),
        sa.Column("count", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_run_groups"),
    )
    source = sa.case((sa.column("source").is_not(None), sa.literal("elsewhere")))
    columns = [sa.column("is_listed"), sa.column("state"), source, *map(sa.column, _GROUPED)]
    counted = sa.select(*columns, sa.func.count()).select_from(sa.table("runs")).group_by(*columns)
    names = ("is_listed", "state", "source", *_GROUPED, "count")
    rows = [
        {"key": _key(*group), **dict(zip(names, (*group, count), strict=True))}
        for *group, count in op.get_bind().execute(counted)
    ]
    op.bulk_insert(table, rows)


def _type(name: str) -> sa.types.TypeEngine[str] | sa.types.TypeEngine[int]:
    if name == "workload":
        return sa.String(64)
    return sa.Text() if name in _TEXTS else sa.Integer()


def _key(*group: object) -> str:
    return hashlib.sha256(json.dumps(group).encode()).hexdigest()[:32]


def downgrade() -> None:
    """Drop the table and the column."""
    op.drop_table("run_groups")
    op.drop_index("ix_runs_groups", "runs")
    op.create_index("ix_runs_groups", "runs", _BEFORE)
    op.drop_column("runs", "interactivity")
