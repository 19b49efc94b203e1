"""The database of the index: SQLite beside the files by default, PostgreSQL by URL; migrations and locks."""

from __future__ import annotations

import contextlib
import fcntl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.leaderboard.store.migrations import LATEST
from ccl_bench.leaderboard.store.tables import METADATA
from ccl_bench.storage import open_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from alembic.config import Config
    from sqlalchemy import Connection, Engine


FILE = "index.sqlite"
_BUSY_SECONDS = 30
"""Time that a writer waits for another one; indexing a hundred runs takes about a second."""

_MAPPED = 1 << 30
"""Bytes of the file that are read through memory; a board of 50,000 rows has a quarter of that."""


def timestamp(later_s: float = 0.0) -> str:
    """Return the time in some seconds in the form of the database: ISO 8601 in UTC, which sorts as text."""
    moment = datetime.now(UTC) + timedelta(seconds=later_s)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"


def open_engine(data: Path, url: str | None) -> Engine:
    """Return the engine of a data directory; `url` names another database than the file in it."""
    try:
        address = make_url(url or f"sqlite:///{data / FILE}")
    except ArgumentError as error:
        fix = "write postgresql+psycopg://user@host/name or sqlite:///path"
        raise UsageError(f"{url!r} is not the address of a database", fix=fix) from error
    if address.drivername in {"postgresql", "postgres"}:
        address = address.set(drivername="postgresql+psycopg")
    kind = address.get_backend_name()
    if kind not in {"sqlite", "postgresql"}:
        raise UsageError(f"{kind} is not a supported database", fix="use SQLite or PostgreSQL")
    if kind == "postgresql":
        engine = create_engine(address, pool_pre_ping=True, pool_size=10, max_overflow=20)

        @event.listens_for(engine, "connect")
        def prepare_connection(connection: Any, _record: object) -> None:
            # Compiling one of these queries takes the server longer than running it.
            with connection.cursor() as cursor:
                cursor.execute("SET jit = off")
            connection.commit()

        return engine
    if address.database not in {None, "", ":memory:"}:
        # SQLite gives its journals the permissions of the file, and reports one that it cannot open.
        with contextlib.suppress(OSError):
            open_private(Path(address.database), "ab").close()
    engine = create_engine(address, connect_args={"timeout": _BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def prepare_file(connection: Any, _record: object) -> None:
        # Readers and one writer work concurrently, and transactions are left to SQLAlchemy.
        connection.isolation_level = None
        # Connections share a file that is mapped; each would keep few of its pages in memory otherwise.
        pragmas = (
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "foreign_keys = ON",
            f"mmap_size = {_MAPPED}",
        )
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer locks at its beginning, so that two writers queue and none fails half-way.
        is_writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")

    return engine


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a write transaction, and commit it."""
    with engine.connect().execution_options(writing=True) as connection, connection.begin():
        yield connection


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """Lock out every other process that changes files of the data directory."""
    path = data / ".lock"
    try:
        stream = open_private(path, "ab")
    except OSError as error:
        fix = "give write access to the data directory"
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), fix=fix) from error
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def migrate(engine: Engine) -> None:
    """Migrate the tables to this version, one process at a time."""
    address = engine.url.render_as_string(hide_password=True)
    try:
        # Most starts find the latest tables, and alembic takes a tenth of a second to import.
        with engine.connect() as connection:
            if inspect(connection).has_table("alembic_version"):
                revisions = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
                if [*revisions] == [LATEST]:
                    return
        if _create_tables(engine):
            return
        from alembic import command
        from alembic.util import CommandError

        try:
            with _migrating(engine) as config:
                command.upgrade(config, "head")
        except CommandError as error:
            raise InputError(
                f"the database is of a newer version of ccl-bench: {error}",
                where=address,
                fix="install that version, and take the tables back with its ccl-bench index --downgrade",
            ) from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise InputError(
            f"the database cannot be used: {reason}", where=address, fix="check its address and permissions"
        ) from error


def _create_tables(engine: Engine) -> bool:
    """Create the tables of this version in a database without any, and return whether it had none.

    Six migrations, most of which only a board with rows needs, take six times as long.
    """
    with writing(engine) as connection:
        _lock_migrations(connection)
        if inspect(connection).get_table_names():
            return False
        METADATA.create_all(connection)
        # As alembic itself creates it.
        column = "version_num VARCHAR(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY"
        connection.execute(text(f"CREATE TABLE alembic_version ({column})"))
        connection.execute(text("INSERT INTO alembic_version VALUES (:latest)"), {"latest": LATEST})
        return True


def downgrade(engine: Engine, revision: str = "base") -> None:
    """Undo migrations down to a revision."""
    from alembic import command

    with _migrating(engine) as config:
        command.downgrade(config, revision)


@contextlib.contextmanager
def _migrating(engine: Engine) -> Iterator[Config]:
    """Yield alembic's configuration with a connection that holds the migration lock."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "ccl_bench.leaderboard.store:migrations")
    with writing(engine) as connection:
        _lock_migrations(connection)
        config.attributes["connection"] = connection
        yield config


def _lock_migrations(connection: Connection) -> None:
    """Wait until no other machine migrates these tables; others then wait for the end of the transaction."""
    if connection.dialect.name == "postgresql":
        # The number of the lock is any that other programs do not use; this one is "ccl" in ASCII.
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": 0x63636C})
