"""Publishing: tokens, publications, jobs, and uploaded volume."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(12), nullable=False),
        sa.Column("submitter", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text) for name in ("expires_at", "revoked_at")),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_table(
        "publications",
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("submitter", sa.String(64), nullable=False),
        sa.Column("recording", sa.String(64), nullable=False),
        sa.Column("received_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_publications"),
    )
    for column in ("recording", "submitter"):
        op.create_index(f"ix_publications_{column}", "publications", [column])
    _create_jobs()
    op.create_table(
        "uploads",
        sa.Column("submitter", sa.String(64), nullable=False),
        sa.Column("hour", sa.String(13), nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("submitter", "hour", name="pk_uploads"),
    )


def downgrade() -> None:
    """Drop the tables; tokens and results of recomputing are lost."""
    for table in ("uploads", "jobs", "publications", "tokens"):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Text, nullable=False),
        sa.Column("holder", sa.Text),
        sa.Column("queued_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.Column("message", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_jobs"),
    )
    op.create_index("ix_jobs_state_due_at", "jobs", ["state", "due_at"])
