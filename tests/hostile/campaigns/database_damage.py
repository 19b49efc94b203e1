"""Damage to an export of Nsight Systems by way of SQL: rows, types, columns and tables."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from judging import FACT, MUST_SHOW, NEUTRAL

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

WORK = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
ODD = (None, -1, 2**63 - 1, -(2**63), 1.5, 1e300, float("inf"), "x", "\x00", b"\xff\xfe", "", 0)


def _by_sql(change: Callable[[sqlite3.Connection, random.Random], None]) -> object:
    """Return a change of a file's bytes out of one of the database in it."""

    def apply(content: bytes, chance: random.Random, _: bytes) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "export.sqlite")
            path.write_bytes(content)
            database = sqlite3.connect(path, isolation_level=None)
            try:
                change(database, chance)
            finally:
                database.close()
            return path.read_bytes()

    return apply


def _tables(database: sqlite3.Connection, among: tuple[str, ...] = ()) -> list[str]:
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return [name for name in names if name in among] or names


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]


def _time_set(value: Callable[[random.Random], object]) -> object:
    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        table = chance.choice(_tables(database, WORK[:3]))
        held = [name for name in ("start", "end") if name in _columns(database, table)]
        if held:
            rows = [row for (row,) in database.execute(f'SELECT rowid FROM "{table}"')]
            struck = chance.sample(rows, min(len(rows), chance.choice((1, 3))))
            update = f'UPDATE OR IGNORE "{table}" SET "{chance.choice(held)}" = ? WHERE rowid = ?'
            database.executemany(update, [(value(chance), row) for row in struck])

    return _by_sql(change)


def _value_odd(database: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(database, chance.choice((WORK, ()))))
    column = chance.choice(_columns(database, table))
    rows = [row for (row,) in database.execute(f'SELECT rowid FROM "{table}"')]
    struck = chance.sample(rows, len(rows) // chance.choice((1, 10, max(1, len(rows)))))
    update = f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE rowid = ?'
    odd = chance.choice(ODD)
    with contextlib.suppress(sqlite3.IntegrityError):  # a key takes whole numbers alone
        database.executemany(update, [(odd, row) for row in struck])


def _rows_twice(database: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(database, WORK[:2]))
    keyed = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")') if row[5]}
    if not keyed:
        database.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" LIMIT {chance.choice((1, 3, -1))}')


def _table_lost(database: sqlite3.Connection, chance: random.Random) -> None:
    database.execute(f'DROP TABLE "{chance.choice(_tables(database))}"')


def _column_lost(database: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(database, WORK))
    rest = [name for name in _columns(database, table) if name != chance.choice(_columns(database, table))]
    listed = ", ".join(f'"{name}"' for name in rest)
    database.execute(f'CREATE TABLE "kept" AS SELECT {listed} FROM "{table}"')
    database.execute(f'DROP TABLE "{table}"')
    database.execute(f'ALTER TABLE "kept" RENAME TO "{table}"')


def _names_lost(database: sqlite3.Connection, chance: random.Random) -> None:
    database.execute(f"DELETE FROM StringIds WHERE id % {chance.choice((1, 2))} = 0")


def _half_of_kernels_lost(database: sqlite3.Connection, chance: random.Random) -> None:
    table = WORK[0]
    if table in _tables(database) and chance.choice((True, False)):
        database.execute(f"DELETE FROM {table} WHERE rowid % 2")
    elif table in _tables(database):
        database.execute(f"DELETE FROM {table} WHERE rowid > (SELECT avg(rowid) FROM {table})")


def _table_a_view(database: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(database, WORK))
    database.execute(f'ALTER TABLE "{table}" RENAME TO "hidden"')
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n"
    database.execute(f'CREATE VIEW "{table}" AS {chance.choice((endless, "SELECT * FROM hidden"))}')


def _rewritten(database: sqlite3.Connection, chance: random.Random) -> None:
    database.execute(f"PRAGMA page_size = {chance.choice((1024, 8192))}")
    database.execute("VACUUM")


EXPORT = {
    "time missing": (MUST_SHOW, _time_set(lambda _: None)),
    "time of another type": (MUST_SHOW, _time_set(lambda chance: chance.choice(("x", b"\xff", "")))),
    "odd time": (FACT, _time_set(lambda chance: chance.choice(ODD))),
    "odd value": (FACT, _by_sql(_value_odd)),
    "rows written twice": (MUST_SHOW, _by_sql(_rows_twice)),
    "names lost": (MUST_SHOW, _by_sql(_names_lost)),
    "half of the kernels lost": (MUST_SHOW, _by_sql(_half_of_kernels_lost)),
    "table lost": (FACT, _by_sql(_table_lost)),
    "column lost": (FACT, _by_sql(_column_lost)),
    "view in the place of a table": (MUST_SHOW, _by_sql(_table_a_view)),
    "pages laid out anew": (NEUTRAL, _by_sql(_rewritten)),
}
