"""The same damage of meaning in an export of Nsight Systems, as statements of SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meaning_kinds import Kind
from meaning_times import SHIFTS_US

if TYPE_CHECKING:
    import random
    import sqlite3
    from collections.abc import Callable

    from meaning_runs import Traces

    OfDatabase = Callable[[sqlite3.Connection, random.Random], None]

KERNEL, COPY, SET = (f"CUPTI_ACTIVITY_KIND_{what}" for what in ("KERNEL", "MEMCPY", "MEMSET"))
WAIT, CALL, RANGE = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
DEVICE = (KERNEL, COPY, SET)
HOST = (CALL, RANGE, WAIT)
PROCESS = dict.fromkeys((*DEVICE, WAIT), "globalPid") | {CALL: "globalTid", RANGE: "globalTid"}
"""Column that holds the process, in all but its lowest 24 bits."""

NCCL = "shortName IN (SELECT id FROM StringIds WHERE value LIKE '%nccl%')"


def _of_process(table: str, process: int) -> str:
    return f"{PROCESS[table]} & ~0xFFFFFF = {process}"


def _process(database: sqlite3.Connection, chance: random.Random) -> int:
    rows = database.execute(f"SELECT DISTINCT globalPid FROM {KERNEL} ORDER BY 1")
    return chance.choice([process for (process,) in rows])


def _drawn(database: sqlite3.Connection, chance: random.Random, where: str, most: float) -> str:
    """Return a condition that holds for some of the rows that `where` names, as `table: condition`."""
    table, condition = where.split(": ")
    rows = [row for (row,) in database.execute(f"SELECT rowid FROM {table} WHERE {condition}")]
    count = max(1, round(len(rows) * chance.uniform(0.05, most))) if most else 1
    return f"rowid IN ({', '.join(map(str, chance.sample(rows, count)))})"


def _lost(table: str, condition: str = "1", most: float = 0.4) -> OfDatabase:
    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        process = _of_process(table, _process(database, chance))
        drawn = _drawn(database, chance, f"{table}: {condition} AND {process}", most)
        database.execute(f"DELETE FROM {table} WHERE {drawn}")

    return change


def _all_lost(table: str, condition: str = "1") -> OfDatabase:
    return lambda database, _: database.execute(f"DELETE FROM {table} WHERE {condition}")


def _process_lost(tables: tuple[str, ...]) -> OfDatabase:
    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        process = _process(database, chance)
        for table in tables:
            database.execute(f"DELETE FROM {table} WHERE {_of_process(table, process)}")

    return change


def _kernels_and_launches_lost(database: sqlite3.Connection, chance: random.Random) -> None:
    process = _process(database, chance)
    drawn = _drawn(database, chance, f"{KERNEL}: {_of_process(KERNEL, process)}", 0.4)
    asked = f"SELECT correlationId FROM {KERNEL} WHERE {drawn}"
    of = _of_process(CALL, process)
    database.execute(f"DELETE FROM {CALL} WHERE {of} AND correlationId IN ({asked})")
    database.execute(f"DELETE FROM {KERNEL} WHERE {drawn}")


def _again(table: str, condition: str, most: float | None = None, changes: str = "") -> OfDatabase:
    """Return a change that writes rows of a table once more, with some columns set by expressions."""

    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        rows = condition if most is None else _drawn(database, chance, f"{table}: {condition}", most)
        database.execute(f"CREATE TEMP TABLE again AS SELECT * FROM {table} WHERE {rows}")
        if changes:
            database.execute(f"UPDATE again SET {changes}")
        database.execute(f"INSERT INTO {table} SELECT * FROM again")
        database.execute("DROP TABLE again")

    return change


def _process_again(database: sqlite3.Connection, chance: random.Random) -> None:
    """Write the rows of a process once more, under the number of another process."""
    process = _process(database, chance)
    for table in (*DEVICE, *HOST):
        other = f"{PROCESS[table]} = {PROCESS[table]} + {77 << 24}"
        _again(table, _of_process(table, process), None, other)(database, chance)


def _all_again(database: sqlite3.Connection, chance: random.Random) -> None:
    for table in (*DEVICE, *HOST):
        _again(table, "1")(database, chance)


def _moved(tables: tuple[str, ...], by_us: tuple[float, ...] = SHIFTS_US) -> OfDatabase:
    """Return a change of the times of one process."""

    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        process, by = _process(database, chance), int(1000 * chance.choice(by_us)) * chance.choice((1, -1))
        for table in tables:
            of = _of_process(table, process)
            database.execute(f"UPDATE {table} SET start = start + {by}, end = end + {by} WHERE {of}")

    return change


def _one_moved(database: sqlite3.Connection, chance: random.Random) -> None:
    drawn = _drawn(database, chance, f"{KERNEL}: 1", 0)
    by = int(1000 * chance.choice(SHIFTS_US)) * chance.choice((1, -1))
    database.execute(f"UPDATE {KERNEL} SET start = start + {by}, end = end + {by} WHERE {drawn}")


def _before_launch(database: sqlite3.Connection, chance: random.Random) -> None:
    drawn = _drawn(database, chance, f"{KERNEL}: 1", 0.2)
    asked = f"(SELECT min(c.start) FROM {CALL} c WHERE c.correlationId = {KERNEL}.correlationId"
    asked += f" AND c.globalTid & ~0xFFFFFF = {KERNEL}.globalPid)"
    database.execute(
        f"UPDATE {KERNEL} SET end = {asked} - 10000 + end - start, start = {asked} - 10000"
        f" WHERE {drawn} AND {asked} IS NOT NULL"
    )


def _longer(table: str, factor: float, condition: str = "1") -> OfDatabase:
    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        drawn = _drawn(database, chance, f"{table}: {condition}", 0)
        database.execute(
            f"UPDATE {table} SET end = start + CAST((end - start) * {factor} AS INTEGER) WHERE {drawn}"
        )

    return change


def _last_longer(database: sqlite3.Connection, _: random.Random) -> None:
    last = f"end = (SELECT max(end) FROM {KERNEL})"
    database.execute(f"UPDATE {KERNEL} SET end = start + (end - start) * 1000 WHERE {last}")


def _lengths(tables: tuple[str, ...], factor: float, *, of_all: bool = False) -> OfDatabase:
    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        process = _process(database, chance)
        for table in tables:
            of = "1" if of_all else _of_process(table, process)
            length = f"CAST((end - start) * {factor} AS INTEGER)"
            database.execute(f"UPDATE {table} SET end = start + {length} WHERE {of}")

    return change


def _unit(tables: tuple[str, ...], factor: float, *, of_all: bool = True) -> OfDatabase:
    """Return a change of starts and ends, as if they were in another unit."""

    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        process = _process(database, chance)
        for table in tables:
            of = "1" if of_all else _of_process(table, process)
            values = ", ".join(f"{key} = CAST({key} * {factor} AS INTEGER)" for key in ("start", "end"))
            database.execute(f"UPDATE {table} SET {values} WHERE {of}")

    return change


def _zero_lengths(database: sqlite3.Connection, chance: random.Random) -> None:
    database.execute(f"UPDATE {KERNEL} SET end = start WHERE {_drawn(database, chance, f'{KERNEL}: 1', 0.2)}")


def _swapped(column: str) -> OfDatabase:
    """Return a change that gives a column's values of some kernels to others of these."""

    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        drawn = _drawn(database, chance, f"{KERNEL}: {_of_process(KERNEL, _process(database, chance))}", 0.2)
        rows = database.execute(f"SELECT rowid, {column} FROM {KERNEL} WHERE {drawn}").fetchall()
        values = [value for _, value in rows]
        changes = zip([*values[1:], values[0]], (row for row, _ in rows), strict=True)
        database.executemany(f"UPDATE {KERNEL} SET {column} = ? WHERE rowid = ?", [*changes])

    return change


def _lengths_swapped(database: sqlite3.Connection, chance: random.Random) -> None:
    drawn = _drawn(database, chance, f"{KERNEL}: {_of_process(KERNEL, _process(database, chance))}", 0.2)
    rows = database.execute(f"SELECT rowid, end - start FROM {KERNEL} WHERE {drawn}").fetchall()
    values = [value for _, value in rows]
    changes = zip([*values[1:], values[0]], (row for row, _ in rows), strict=True)
    database.executemany(f"UPDATE {KERNEL} SET end = start + ? WHERE rowid = ?", [*changes])


def _set(table: str, changes: str, condition: str = "1") -> OfDatabase:
    return lambda database, _: database.execute(f"UPDATE {table} SET {changes} WHERE {condition}")


def _devices_swapped(database: sqlite3.Connection, _: random.Random) -> None:
    for table in DEVICE:
        database.execute(f"UPDATE {table} SET deviceId = 1 - deviceId")


def _cut(tables: tuple[str, ...], *, front: bool, of_all: bool = False) -> OfDatabase:
    def change(database: sqlite3.Connection, chance: random.Random) -> None:
        process = _process(database, chance)
        first, last = database.execute(f"SELECT min(start), max(end) FROM {KERNEL}").fetchone()
        at = chance.uniform(0.1, 0.6)
        border = int(first + at * (last - first) if front else last - at * (last - first))
        for table in tables:
            of = "1" if of_all else _of_process(table, process)
            gone = f"start < {border}" if front else f"end > {border}"
            database.execute(f"DELETE FROM {table} WHERE {of} AND {gone}")

    return change


CHANGES: dict[str, dict[str, OfDatabase]] = {
    "lost": {
        "kernels": _lost(KERNEL),
        "kernels and their launches": _kernels_and_launches_lost,
        "copies": _lost(COPY),
        "launches": _lost(CALL),
        "all launches": _all_lost(CALL),
        "work of the device": _process_lost(DEVICE),
        "times of collectives": _lost(KERNEL, NCCL),
        "the time of one collective": _lost(KERNEL, NCCL, 0),
        "ranges": _lost(RANGE),
        "ranges of a process": _process_lost((RANGE,)),
        "the trace of a rank": _process_lost((*DEVICE, *HOST)),
    },
    "doubled": {
        "kernels": _again(KERNEL, "1", 0.4),
        "all events": _all_again,
        "all events under another pid": _process_again,
    },
    "shifted": {
        "one kernel": _one_moved,
        "clock of the device": _moved(DEVICE),
        "clock of the device by 1 ms": _moved(DEVICE, (1e3,)),
        "whole clock": _moved((*DEVICE, *HOST)),
        "kernels before their launch": _before_launch,
    },
    "scaled": {
        "a kernel x 1000": _longer(KERNEL, 1000),
        "the last kernel x 1000": _last_longer,
        "a collective x 1000": _longer(KERNEL, 1000, NCCL),
        "a copy x 1000": _longer(COPY, 1000),
        "a copy / 1000": _longer(COPY, 1e-3),
        "a kernel x 1.1": _longer(KERNEL, 1.1),
        "lengths on the device x 1000": _lengths(DEVICE, 1000),
        "lengths on the device / 1000": _lengths(DEVICE, 1e-3),
        "lengths on the device / 1000, all ranks": _lengths(DEVICE, 1e-3, of_all=True),
        "lengths on the host / 1000": _lengths(HOST, 1e-3),
        "times in another unit": _unit((*DEVICE, *HOST), 1e-3),
        "clock of the device in another unit": _unit(DEVICE, 1e-3, of_all=False),
        "zero lengths of kernels": _zero_lengths,
    },
    "swapped": {
        "lengths of two kernels": _lengths_swapped,
        "streams of two kernels": _set(KERNEL, "streamId = 99", f"rowid % 2 AND NOT {NCCL}"),
        "correlations of kernels": _swapped("correlationId"),
        "two kernels": _swapped("shortName"),
        "devices of two ranks": _devices_swapped,
    },
    "truncated": {
        "front": _cut((*DEVICE, *HOST), front=True),
        "tail": _cut((*DEVICE, *HOST), front=False),
        "front, all ranks": _cut((*DEVICE, *HOST), front=True, of_all=True),
        "tail, all ranks": _cut((*DEVICE, *HOST), front=False, of_all=True),
        "front of the device": _cut(DEVICE, front=True),
        "tail of the device": _cut(DEVICE, front=False),
        "tail of the device, all ranks": _cut(DEVICE, front=False, of_all=True),
        "front of the host": _cut(HOST, front=True),
        "tail of the host": _cut(HOST, front=False),
    },
    "wrong field": {
        "streams negative": _set(KERNEL, "streamId = -7", "rowid % 5 = 0"),
        "bytes of copies x 1000": _set(COPY, "bytes = bytes * 1000"),
        "bytes of copies negative": _set(COPY, "bytes = -bytes", "rowid % 5 = 0"),
        "device of kernels": _set(KERNEL, "deviceId = 9", "rowid % 5 = 0"),
        "processes of kernels": _set(KERNEL, f"globalPid = globalPid + {5 << 24}", "rowid % 5 = 0"),
    },
}


def _of_run(change: OfDatabase) -> Callable[[Traces, random.Random], None]:
    def apply(run: Traces, chance: random.Random) -> None:
        database = run.database()
        try:
            database.execute("BEGIN")
            change(database, chance)
            database.execute("COMMIT")
        finally:
            database.close()

    return apply


KINDS = [
    Kind(family, name, _of_run(change))
    for family, changes in CHANGES.items()
    for name, change in changes.items()
]
