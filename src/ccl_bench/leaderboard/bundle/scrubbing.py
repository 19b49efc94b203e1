"""Exports of Nsight Systems without what they tell of the machine: environment, output, host, processes.

What numbers rest on is copied into a fresh database, so that nothing is left over in unused pages.
"""

from __future__ import annotations

import re
import sqlite3
import tomllib
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROCESS = ~0xFFFFFF
"""Part of a `globalTid` that is its process's `globalPid`."""
_SETTING = re.compile(r'([A-Z0-9_]+)="?(\d{1,7})"?(?=[;\0]|\Z)')
_TYPES = {"INTEGER", "REAL", "TEXT", "BLOB"}


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    columns: dict[str, str]
    """Column → type."""

    @property
    def listed(self) -> str:
        return ", ".join(map(_quoted, self.columns))


def scrub(export: Path, target: Path) -> None:
    """Write what may be published of an export, an SQLite database, to a file that is not there yet."""
    with closing(sqlite3.connect(f"{target.absolute().as_uri()}?mode=rwc", uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.create_function("is_told", 1, _is_told, deterministic=True)
        connection.create_function("ranks_of", 2, _ranks_of, deterministic=True)
        try:
            connection.execute("ATTACH ? AS source", (f"{export.absolute().as_uri()}?mode=ro",))
            _copy(connection, {table.name: table for table in _tables(connection)})
            connection.commit()
            connection.execute("DETACH source")
        except sqlite3.Error as error:
            fix = "export the report again, or publish without the traces"
            raise InputError(f"cannot be copied: {error}", where=str(export), fix=fix) from error


def _tables(connection: sqlite3.Connection) -> Iterator[_Table]:
    """Yield the real tables of the export, without those of SQLite itself."""
    listed = "SELECT name FROM source.sqlite_master"
    listed += " WHERE type = 'table' AND rootpage AND name NOT LIKE 'sqlite_%'"
    for (name,) in connection.execute(listed).fetchall():
        described = connection.execute(f"PRAGMA source.table_info({_quoted(name)})").fetchall()
        columns = {column: kind.upper() for _, column, kind, *_ in described}
        yield _Table(name, {column: kind if kind in _TYPES else "" for column, kind in columns.items()})


def _copy(connection: sqlite3.Connection, tables: dict[str, _Table]) -> None:
    """Create the tables that are kept, then fill them: so their names lie near the file's beginning."""
    chosen = {name: how for name, table in tables.items() if (how := _chosen(table, tables))}
    for name in chosen:
        columns = ", ".join(f"{_quoted(column)} {kind}" for column, kind in tables[name].columns.items())
        connection.execute(f"CREATE TABLE main.{_quoted(name)} ({columns})")
    for name, (values, condition) in chosen.items():
        selected = f"SELECT {values} FROM source.{_quoted(name)} WHERE {condition}"  # noqa: S608 (quoted)
        connection.execute(f"INSERT INTO main.{_quoted(name)} ({tables[name].listed}) {selected}")


def _chosen(table: _Table, tables: dict[str, _Table]) -> tuple[str, str] | None:
    """Return what is selected of a table, and the condition on its rows; None where it is left out."""
    if _is_whole(table.name):
        return table.listed, "1"
    if table.name == "StringIds":
        return table.listed, f'"id" IN ({_texts_in_use(tables)})'
    if table.name == "PROCESSES":
        return table.listed, f'"globalPid" IN ({_processes_in_use(tables)})'
    if table.name == "DIAGNOSTIC_EVENT" and "text" in table.columns:
        return table.listed, 'is_told(CAST("text" AS BLOB))'
    if {"name", "value"} <= table.columns.keys():
        settings = ", ".join(f"'{name}'" for name in _rules()["settings"])
        values = table.listed.replace(
            _quoted("value"), 'COALESCE(ranks_of("name", CAST("value" AS BLOB)), "value")'
        )
        return values, f'"name" IN ({settings}) OR ranks_of("name", CAST("value" AS BLOB)) > \'\''
    return None


def _is_whole(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _rules()["tables"])


def _texts_in_use(tables: dict[str, _Table]) -> str:
    """Return the query for the ids of texts that copied tables use."""
    return _union(
        f"SELECT {_quoted(column)} FROM source.{_quoted(table.name)}"  # noqa: S608 (quoted)
        for table in tables.values()
        if _is_whole(table.name)
        for column in table.columns
        if column in _rules()["strings"]
    )


def _processes_in_use(tables: dict[str, _Table]) -> str:
    """Return the query for the processes with work on a device, ranges or MPI calls."""
    of_process = {"globalPid": '"globalPid"', "globalTid": f'"globalTid" & {_PROCESS}'}
    return _union(
        f"SELECT {of_process[column]} FROM source.{_quoted(table.name)}"  # noqa: S608 (quoted)
        for table in tables.values()
        if _is_whole(table.name)
        for column in table.columns.keys() & of_process.keys()
    )


def _union(queries: Iterator[str]) -> str:
    return " UNION ".join(queries) or "NULL"


def _is_told(text: bytes | None) -> bool:
    return bool(re.search(_rules()["messages"], _decoded(text)))


def _ranks_of(name: object, value: bytes | None) -> str | None:
    """Return the variables of an environment that tell a rank; None where the row is no environment."""
    if not str(name).endswith((":ENVIRONMENT_VARIABLE", "DeviceEnvironment")):
        return None
    found = _SETTING.findall(_decoded(value))
    return ";".join(f"{key}={number}" for key, number in found if key in _rules()["variables"])


def _decoded(text: bytes | None) -> str:
    """Return a text of the export, which need not be valid UTF-8."""
    return (text or b"").decode("utf-8", errors="replace")


@cache
def _rules() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("scrubbing.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
