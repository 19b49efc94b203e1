"""Exports of Nsight Systems made for tests, and what is read from them."""

import sqlite3

from ccl_bench.analysis.derived import DERIVED, computation_order
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.nsys.reader import read_nsys

START_NS = 1_700_000_000_000_000_000
PID, HOST = 145, 1 << 48
OWNER = HOST | PID << 24
THREAD = OWNER | 7

SESSION = {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": START_NS}]}


def export(path, tables, strings=(), **more):
    """Write a database of these tables, each a list of rows; `strings` get the ids 1, 2, 3, ..."""
    tables = SESSION | tables | more
    tables.setdefault("StringIds", [{"id": place, "value": text} for place, text in enumerate(strings, 1)])
    with sqlite3.connect(path) as database:
        for name, rows in tables.items():
            columns = list(dict.fromkeys(column for row in rows for column in row)) or ["id"]
            listed = ", ".join(f'"{column}"' for column in columns)
            database.execute(f'CREATE TABLE "{name}" ({listed})')
            values = [tuple(row.get(column) for column in columns) for row in rows]
            database.executemany(f'INSERT INTO "{name}" VALUES ({",".join("?" * len(columns))})', values)
    database.close()
    return path


def changed(path, script):
    """Run a script of SQL on a database."""
    database = sqlite3.connect(path)
    database.executescript(script)
    database.close()
    return path


def content(path, process=None):
    return read_nsys(path, path.name, process)


def kernel(start, end, name=1, **more):
    return {
        "start": start,
        "end": end,
        "globalPid": OWNER,
        "deviceId": 0,
        "streamId": 7,
        "correlationId": start,
        "demangledName": name,
    } | more


def mark(start, end, text=None, kind=59, **more):
    return {
        "start": start,
        "end": end,
        "text": text,
        "eventType": kind,
        "globalTid": THREAD,
        "textId": None,
    } | more


def rows(table, *columns):
    """Return columns of a table as tuples, times since the session began."""
    shown = table.with_columns(table[name] - START_NS for name in table.columns if name.endswith("_ns"))
    return shown.select(columns).rows()


def codes(found):
    return [finding.code for finding in found.findings]


def derived(found, name):
    """Return a derived table of one trace."""
    DERIVED.load()
    tables = {raw: found.table(raw) for raw in TABLES}
    tables["identity"] = TABLES["identity"].frame({"rank": [found.rank], "world_size": [found.world_size]})
    for step in computation_order([name]):
        table = DERIVED.get(step)
        tables[step] = table.compute(*(tables[need] for need in table.needs))
    return tables[name]
