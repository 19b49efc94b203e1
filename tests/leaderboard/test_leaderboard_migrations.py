"""The tables that migrations make are those that the program declares, on either database."""

from __future__ import annotations

import contextlib
import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.leaderboard.store import METADATA, Store, open_store
from ccl_bench.leaderboard.store.database import downgrade, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

with contextlib.suppress(ModuleNotFoundError):
    importlib.import_module("ccl_bench.leaderboard.store.tables")


@pytest.fixture
def fresh(tmp_path: Path, database: str | None) -> Iterator[Store]:
    """Return a store on a database that was empty."""
    made = open_store(tmp_path / "fresh", database, create=True)
    yield made
    made.engine.dispose()


def test_migrating_an_empty_database_gives_what_is_declared(fresh: Store) -> None:
    with fresh.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_migrating_again_changes_nothing_and_back_leaves_nothing(fresh: Store) -> None:
    migrate(fresh.engine)
    downgrade(fresh.engine)
    assert inspect(fresh.engine).get_table_names() == ["alembic_version"]
    migrate(fresh.engine)
    assert {"runs", "workloads", "metric_values"} <= set(inspect(fresh.engine).get_table_names())


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
    with pytest.raises(InputError, match="is no directory") as refused:
        open_store(tmp_path / "nothing")
    assert "ccl-bench publish" in refused.value.fix
