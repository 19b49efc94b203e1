"""The bytes that each published run takes on the disk, of which a submitter may have so many."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the column; runs that were published before do not count."""
    op.add_column("publications", sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("publications", "bytes")
