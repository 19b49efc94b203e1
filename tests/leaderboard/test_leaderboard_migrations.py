"""The tables that migrations make are those that the program declares, on either database."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from commands import ROOT, invoke, ran
from databases import create_database
from forked_programs import Forked
from leaderboard_bundles import added, many, placed
from sqlalchemy import MetaData, func, insert, inspect, select, text

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.leaderboard.bundle.format import Bundle
from ccl_bench.leaderboard.bundle.origin import new_key
from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.leaderboard.publishing.audit import audit_store
from ccl_bench.leaderboard.publishing.publications import reconcile
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.reported.observations import Reported, packaged
from ccl_bench.leaderboard.store import METADATA, Store, migrations, open_store, rows, writing
from ccl_bench.leaderboard.store.database import downgrade, migrate, open_engine
from ccl_bench.leaderboard.store.log import log_changes
from ccl_bench.leaderboard.store.migrations import LATEST
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.store.query_result import count_phases, find_runs
from ccl_bench.leaderboard.store.tables import RUN_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

with contextlib.suppress(ModuleNotFoundError):
    importlib.import_module("ccl_bench.leaderboard.store.tables")


def _differences(connection: Connection) -> list[Any]:
    """Return what a database has other than the tables that are declared for it."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    # Alembic also compares the indexes of the other database.
    elsewhere = {
        index.name
        for table in METADATA.tables.values()
        for index in table.indexes
        if index._ddl_if and index._ddl_if.dialect != connection.dialect.name
    }
    return [
        change
        for change in compare_metadata(context, METADATA)
        if change[0] != "add_index" or change[1].name not in elsewhere
    ]


@pytest.fixture
def fresh(tmp_path: Path, database: str | None) -> Iterator[Store]:
    """Return a store on a database that was empty."""
    made = open_store(tmp_path / "fresh", database, create=True)
    yield made
    made.engine.dispose()


def _written_version(engine: Engine) -> list[tuple[str, bool, bool]]:
    return [
        (str(column["type"]), bool(column["nullable"]), bool(column.get("primary_key")))
        for column in inspect(engine).get_columns("alembic_version")
    ]


def test_an_empty_database_gets_the_tables_that_all_migrations_make(fresh: Store) -> None:
    migrate(fresh.engine)
    with fresh.engine.connect() as connection:
        assert _differences(connection) == []
    version = _written_version(fresh.engine)
    downgrade(fresh.engine)
    assert inspect(fresh.engine).get_table_names() == ["alembic_version"]
    with writing(fresh.engine) as connection:
        connection.execute(text("DROP TABLE alembic_version"))
        connection.execute(text("CREATE TABLE of_another_program (id INTEGER)"))
    migrate(fresh.engine)
    with writing(fresh.engine) as connection:
        connection.execute(text("DROP TABLE of_another_program"))
        assert _differences(connection) == []
    assert _written_version(fresh.engine) == version


def test_the_tables_of_this_version_are_those_of_the_last_migration(fresh: Store) -> None:
    with fresh.engine.connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == LATEST
    assert ScriptDirectory(migrations.__path__[0]).get_current_head() == LATEST


def test_several_that_start_at_once_do_not_meet(tmp_path: Path, database: str | None) -> None:
    def start(_place: int) -> int:
        found = open_store(tmp_path / "shared", database, create=True)
        count = found.count
        found.engine.dispose()
        return count

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(4))) == [0, 0, 0, 0]


def test_an_address_that_is_none_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the address of a database"):
        open_store(tmp_path, "nonsense")
    with pytest.raises(UsageError, match="mysql is not a supported database"):
        open_store(tmp_path, "mysql://host/name")


def test_a_database_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        open_store(tmp_path, f"postgresql://ada:secret@/name?host={tmp_path}")
    assert "secret" not in str(refused.value)
    assert "ada" in str(refused.value)


def test_a_directory_that_cannot_be_written_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        open_store(tmp_path)


def test_a_directory_that_is_not_there_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a directory") as refused:
        open_store(tmp_path / "nothing")
    assert "ccl-bench publish" in refused.value.fix


RELEASED = ("0001", "0002", "0003")
"""Revisions of the tables that a version before this one left behind."""
UPGRADED = [*(("sqlite", each) for each in RELEASED), ("postgresql", "0001"), ("postgresql", "0002")]
"""Databases and the revisions that they are upgraded from, or go back to: the first takes every step."""
ONLY_IN = {
    "0002": {"tokens", "publications", "jobs", "uploads"},
    "0003": {"log", "keys"},
    "0004": {"run_counts", "rank_counts"},
    "0006": {"sources"},
    "0007": {"run_groups"},
}
"""Revision → tables that it brought."""
TOKEN = f"cclb_{'a' * 12}_{'A' * 43}"
"""A token as version 0.1.0 made it, without an expiry."""


def _left_behind(data: Path, database: str | None, revision: str) -> list[str]:
    """Write a data directory and its database as an older version left them, and return its runs."""
    runs = placed(data, list(many(6)))
    engine = open_engine(data, database)
    migrate(engine)
    downgrade(engine, revision)
    bundles = [Bundle(data / "runs" / run) for run in runs]
    _insert(engine, "workloads", [{**rows.workload_row(each.fields), "size": 1} for each in bundles])
    _insert(engine, "runs", [rows.run_row(each) for each in bundles])
    values = [row for each in bundles for row in rows.value_rows(each, rows.run_row(each))]
    _insert(engine, "metric_values", [{**row, "place": 1, "ranked": 2} for row in values])
    if revision >= "0002":
        token = {
            "id": "a" * 12,
            "submitter": "ada",
            "role": "submitter",
            "created_at": "2026-01-01T00:00:00Z",
        }
        expiry = {"expires_at": "2999-01-01T00:00:00.000000Z"} if revision >= "0003" else {}
        _insert(engine, "tokens", [{**token, **expiry, "digest": tokens._digest(TOKEN)}])
        publication = {"run": runs[0], "submitter": "ada", "recording": "f" * 64}
        _insert(engine, "publications", [{**publication, "received_at": "2026-01-01T00:00:00.000000Z"}])
        job = {"run": runs[0], "state": "verified", "attempts": 1, "message": "as it was"}
        times = {"due_at": "2026-01-01T00:00:00Z", "queued_at": "2026-01-01T00:00:00Z"}
        _insert(engine, "jobs", [{**job, **times}])
        _insert(engine, "uploads", [{"submitter": "ada", "hour": "2026-01-01T00", "count": 1, "bytes": 9}])
    if revision >= "0003":
        tokens.register_key(engine, "ada", new_key().public)
        with writing(engine) as connection:
            log_changes(connection, {each.id: each.history for each in bundles})
    engine.dispose()
    return runs


def _insert(engine: Engine, table: str, found: list[dict[str, Any]]) -> None:
    """Insert rows into a table as it is, in whatever columns it has."""
    metadata = MetaData()
    metadata.reflect(engine, only=[table])
    into = metadata.tables[table]
    unique = {tuple(row[key.name] for key in into.primary_key): row for row in found}
    kept = [{name: row[name] for name in row if name in into.columns} for row in unique.values()]
    with writing(engine) as connection:
        connection.execute(insert(into), kept)


def _counts(engine: Engine) -> dict[str, int]:
    metadata = MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        return {
            name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in metadata.tables.items()
            if name != "alembic_version"
        }


@pytest.mark.parametrize(("database", "revision"), UPGRADED, indirect=["database"])
def test_tables_of_every_released_version_are_upgraded_with_their_rows(
    tmp_path: Path, database: str | None, revision: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    runs = _left_behind(data, database, revision)
    engine = open_engine(data, database)
    before = _counts(engine)
    engine.dispose()
    assert before["runs"] == 6
    store = open_store(data, database)
    with store.engine.connect() as connection:
        assert connection.execute(select(func.sum(RUN_GROUPS.c["count"]))).scalar_one() == 6
    assert _counts(store.engine) | {"run_groups": 0} == dict.fromkeys(METADATA.tables, 0) | before
    store.engine.dispose()
    _check_upgraded(data, database)
    if revision == "0002":
        _check_rows_of_0002(store, runs[0])
        store.engine.dispose()


def _check_that_ranks_and_counts_are_whole(store: Store) -> None:
    with store.engine.connect() as connection:
        listed = find_runs(connection, RunQuery()).runs
        assert sum(count_phases(connection).values()) == len(listed) == 6
    better = [number for each in listed for number in each.numbers.values() if number.better != "neither"]
    assert better
    assert all(1 <= number.place <= number.ranked for number in better)


def _check_rows_of_0002(store: Store, run: str) -> None:
    """Find a token that still opens and expires within a year, and what was published and recomputed."""
    assert tokens.authenticate(store.engine, TOKEN).submitter == "ada"
    (row,) = tokens.list_tokens(store.engine)
    left = datetime.fromisoformat(row.expires_at) - datetime.now(UTC)
    assert timedelta(days=365) < left <= timedelta(days=366)
    with store.engine.connect() as connection:
        said = connection.execute(text("SELECT message FROM jobs WHERE run = :run"), {"run": run})
        assert said.scalar_one() == "as it was"
        whose = connection.execute(text("SELECT submitter FROM publications WHERE run = :run"), {"run": run})
        assert whose.scalar_one() == "ada"


@pytest.mark.parametrize(("database", "revision"), UPGRADED[:-1], indirect=["database"])
def test_going_back_loses_what_the_manual_says_and_the_rest_comes_forward_again(
    fresh: Store, revision: str
) -> None:
    for made in many(4):
        added(fresh, made)
    reconcile(fresh, Settings())
    tokens.create_token(fresh.engine, "ada", Role.SUBMITTER)
    published = _counts(fresh.engine)
    with fresh.engine.connect() as connection:
        runs = find_runs(connection, RunQuery()).runs
    fresh.add_reported(Reported(packaged()[0].source, packaged()[0].rows.head(30)))
    before = _counts(fresh.engine)
    assert before["runs"] > published["runs"] == len(runs) == 4
    lost = set().union(*(tables for step, tables in ONLY_IN.items() if step > revision))
    downgrade(fresh.engine, revision)
    assert _counts(fresh.engine) == {name: count for name, count in published.items() if name not in lost}
    migrate(fresh.engine)
    fresh.catch_up()
    reconcile(fresh, Settings())
    after = _counts(fresh.engine)
    assert after == before | {"tokens": 1 if revision >= "0002" else 0}
    with fresh.engine.connect() as connection:
        forward = {each.run["id"]: each for each in find_runs(connection, RunQuery()).runs}
    assert [forward[each.run["id"]] for each in runs] == runs
    assert audit_store(fresh).problems == []


KILLED = ROOT / "tests" / "publishing" / "killed_midway.py"


@pytest.mark.parametrize(
    ("database", "action", "point"),
    [
        ("sqlite", "upgrade", "a table was created"),
        ("sqlite", "upgrade", "a column was dropped"),
        ("sqlite", "downgrade", "rows were changed"),
        ("postgresql", "upgrade", "rows were changed"),
        ("postgresql", "downgrade", "a table was dropped"),
    ],
    indirect=["database"],
)
def test_a_migration_that_is_killed_midway_happened_not_at_all_and_happens_again(
    tmp_path: Path, database: str | None, action: str, point: str
) -> None:
    """Upward from the first revision, in the second, third and fourth; back to it, in the fourth."""
    (data := tmp_path / "data").mkdir()
    _left_behind(data, database, "0001")
    if action == "downgrade":
        (store := open_store(data, database)).catch_up()
        store.engine.dispose()
    engine = open_engine(data, database)
    before = _counts(engine)
    engine.dispose()
    words = [KILLED, data, database or "", action, "0001", point]
    with Path(os.devnull).open("r+b") as nothing, (tmp_path / "log").open("w+b") as errors:
        died = Forked(words, (nothing, nothing, errors), ROOT, dict(os.environ)).wait()
        errors.seek(0)
        assert died == -signal.SIGKILL, errors.read()
    assert _counts(engine) == before
    engine.dispose()
    _check_upgraded(data, database)


def test_processes_that_migrate_a_board_at_once_migrate_it_once(tmp_path: Path, database: str | None) -> None:
    (data := tmp_path / "data").mkdir()
    _left_behind(data, database, "0001")
    command = ["ccl-bench", "board", "index", str(data), *(["--database", database] if database else [])]
    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(lambda _: ran(command), range(2))]
    assert [each.returncode for each in done] == [0, 0], done
    _check_upgraded(data, database)


def test_machines_that_migrate_a_database_at_once_migrate_it_once(
    postgresql_server: str, tmp_path: Path
) -> None:
    """They share no folder. Each has begun before the first may go on: the table of versions is locked."""
    database = create_database(postgresql_server, "migrated_at_once")
    (data := tmp_path / "data").mkdir()
    _left_behind(data, database, "0001")
    code = "import sys, pathlib; from ccl_bench.leaderboard.store.database import migrate, open_engine;"
    command = [sys.executable, "-c", f"{code} migrate(open_engine(pathlib.Path(), sys.argv[1]))", database]
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    engine = open_engine(data, database)
    with ThreadPoolExecutor(2) as pool:
        with engine.connect() as holder, engine.connect() as watcher:
            holder.execute(text("LOCK TABLE alembic_version IN SHARE MODE"))
            ends = [pool.submit(ran, command) for _ in range(2)]
            while watcher.execute(waiting).scalar_one() < 2 and not any(each.done() for each in ends):
                watcher.rollback()
                time.sleep(0.02)
        done = [each.result() for each in ends]
    engine.dispose()
    assert [each.returncode for each in done] == [0, 0], done
    _check_upgraded(data, database)


def _check_upgraded(data: Path, database: str | None) -> None:
    """Open a board whose tables may be of an older version, and find everything in it."""
    store = open_store(data, database)
    with store.engine.connect() as connection:
        assert _differences(connection) == []
    store.catch_up()
    reconcile(store, Settings())
    found = audit_store(store)
    assert (found.runs, found.entries, found.problems) == (6, 6, [])
    _check_that_ranks_and_counts_are_whole(store)
    store.engine.dispose()


def test_the_command_goes_back_and_says_so(small: Store) -> None:
    run = added(small, next(many(1)))
    *earlier, _ = [f"{number:04}" for number in range(1, int(LATEST) + 1)]
    for revision in (earlier[-1], "0003", "0002"):
        done = invoke(["ccl-bench", "board", "index", str(small.data), "--downgrade", revision])
        assert (done.returncode, f"revision {revision}" in done.stdout) == (0, True), done.stderr
    for none in (LATEST, "9999", "base", "-1", ""):
        refused = invoke(["ccl-bench", "board", "index", str(small.data), "--downgrade", none])
        assert refused.returncode == 2
        assert refused.stderr.strip().endswith(f"one of: {', '.join(earlier)}")
    assert "log" not in inspect(small.engine).get_table_names()
    with small.engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM runs")).scalar_one() == run
    assert invoke(["ccl-bench", "board", "index", str(small.data)]).returncode == 0
    assert audit_store(small).problems == []


def test_tables_of_a_newer_version_are_left_alone(fresh: Store) -> None:
    with writing(fresh.engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(InputError, match="of a newer version of ccl-bench"):
        migrate(fresh.engine)
    with fresh.engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
