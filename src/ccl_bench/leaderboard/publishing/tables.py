"""The tables of publishing: tokens, whose run is whose, what is to be recomputed, and how much was sent.

Publications can be made again from the bundles; the others live here only.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text

from ccl_bench.leaderboard.store.tables import METADATA

# Times are ISO 8601 in UTC with microseconds, so that they sort as texts.
TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", String(12), primary_key=True),
    Column("submitter", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("digest", String(64), nullable=False),  # SHA-256 of the token
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text),
    Column("revoked_at", Text),
)

PUBLICATIONS = Table(
    "publications",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("submitter", String(64), nullable=False),
    Column("recording", String(64), nullable=False),  # hash of what was recorded, whatever is said of it
    Column("received_at", Text, nullable=False),
    Index(None, "recording"),
    Index(None, "submitter"),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("run", String(64), primary_key=True),  # one for each run, so that nothing is done twice
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),  # that were begun
    Column("due_at", Text, nullable=False),  # waiting: not before; running: somebody else's from then on
    Column("holder", Text),
    Column("queued_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("message", Text, nullable=False),
    Index(None, "state", "due_at"),
)

UPLOADS = Table(
    "uploads",
    METADATA,
    Column("submitter", String(64), primary_key=True),
    Column("hour", String(13), primary_key=True),  # such as 2026-01-31T12
    Column("count", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
