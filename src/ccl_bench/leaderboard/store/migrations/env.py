"""The environment of alembic: applies the migrations on the connection of the store."""

from __future__ import annotations

from alembic import context

from ccl_bench.leaderboard.store.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
