"""The log of the board and the keys of publishers; every token expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_DAYS = 366
"""Validity of a token that had none, from the migration on."""


def upgrade() -> None:
    """Create the tables, and mark every run for reading, which writes its changes into the log."""
    op.create_table(
        "log",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("run", sa.String(64), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("state", "at", "by", "note")),
        *(sa.Column(name, sa.String(64), nullable=False) for name in ("superseded_by", "key")),
        sa.Column("logged_at", sa.Text, nullable=False),
        *(sa.Column(name, sa.String(64), nullable=False) for name in ("previous", "hash")),
        sa.PrimaryKeyConstraint("number", name="pk_log"),
    )
    op.create_index("ix_log_run", "log", ["run"])
    op.create_table(
        "keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("submitter", sa.String(64), nullable=False),
        sa.Column("public_key", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("revoked_at", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
    )
    op.add_column("runs", sa.Column("signed_by", sa.String(16)))
    runs = sa.table("runs", sa.column("history_stamp"))
    op.execute(runs.update().values(history_stamp="not in the log"))
    tokens = sa.table("tokens", sa.column("expires_at"))
    expiry = f"{datetime.now(UTC) + timedelta(days=_DAYS):%Y-%m-%dT%H:%M:%S.%fZ}"
    op.execute(tokens.update().where(tokens.c.expires_at.is_(None)).values(expires_at=expiry))
    _require_expiry(is_required=True)


def downgrade() -> None:
    """Drop the log, the keys and the signatures of runs; tokens keep their expiry."""
    _require_expiry(is_required=False)
    op.drop_column("runs", "signed_by")
    for table in ("keys", "log"):
        op.drop_table(table)


def _require_expiry(*, is_required: bool) -> None:
    with op.batch_alter_table("tokens") as tokens:
        tokens.alter_column("expires_at", existing_type=sa.Text(), nullable=not is_required)
