"""Read tables of SQLite databases by C and by SQLite, and hold one against the other.

    python tests/trace/databases_both_ways.py --inputs 5000 --sanitized

damages that many databases; with `--sanitized` a library reads them that watches every access to memory.
"""

import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from unittest import mock

from fuzzing import sanitized_library, watching

from ccl_bench.base.errors import InputError
from ccl_bench.trace import sqlite
from ccl_bench.trace.native import library

ORIGIN = sqlite.DatabaseOrigin(signs=("t",), is_none="holds no table", fix="make it again")
KINDS = ("integer", "real", "text", "blob")


def reading(path, kinds, only=sqlite.EVERY_ROW):
    """Return what a database gives, and how many of its tables were read by C."""
    taken = []
    scanned = sqlite.Database._scanned

    def noted(*arguments):
        found = scanned(*arguments)
        taken.extend([] if found is None else [found])
        return found

    with mock.patch.object(sqlite.Database, "_scanned", noted):
        try:
            with sqlite.open_database(path, "x", ORIGIN) as database:
                frames = {table: database.frame(table, kinds, only) for table in sorted(database.columns)}
                return (frames, database.damage, database.cut), len(taken)
        except InputError as error:
            return str(error), len(taken)


def by_sqlite(path, kinds, only=sqlite.EVERY_ROW):
    """Return what a database gives where nothing is read by C."""
    with mock.patch.dict(os.environ, {library.VARIABLE: "0"}):
        found, taken = reading(path, kinds, only)
    assert not taken
    return found


def compared(path, kinds, only=sqlite.EVERY_ROW):
    """Return how many tables were read by C; AssertionError where SQLite reads something else."""
    expected = by_sqlite(path, kinds, only)
    found, taken = reading(path, kinds, only)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return taken
    assert found[1:] == expected[1:]
    assert found[0].keys() == expected[0].keys()
    for table, frame in expected[0].items():
        assert frame.schema == found[0][table].schema
        assert frame.equals(found[0][table], null_equal=True), table
    return taken


def made(path, *statements, rows=(), page_size=4096, reserved=0):
    """Write a database: statements, then rows of table t."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA page_size={page_size}")
        database.execute("PRAGMA user_version=1")
    if reserved:
        _reserve(path, page_size, reserved)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)
        if rows:
            database.execute("BEGIN")
            database.executemany(f"INSERT INTO t VALUES ({','.join('?' * len(rows[0]))})", rows)
            database.execute("COMMIT")
    return path


def _reserve(path, page_size, count):
    """Let the end of each page be no part of it, as extensions of SQLite do; Python cannot ask for it."""
    page = bytearray(path.read_bytes())
    page[20] = count
    page[105:107] = (page_size - count).to_bytes(2, "big")
    path.write_bytes(page)


def seeds(folder):
    """Write the databases that are damaged."""
    few = [(n, n / 4, f"name {n}", b"\x01" * (n % 9) or None) for n in range(200)]
    long = [(n, None, "x" * (700 * n % 3000), b"\x00" * n) for n in range(60)]
    table = "CREATE TABLE t (k INTEGER, r REAL, s TEXT, b)"
    keyed = "CREATE TABLE t (k INTEGER PRIMARY KEY, r REAL, s TEXT, b)"
    return [
        made(folder / "few", table, rows=few, page_size=512),
        made(folder / "keyed", keyed, rows=few, page_size=1024),
        made(folder / "long", table, rows=long, page_size=512),
        made(folder / "one", table, rows=few[:5]),
        _with_a_record_beyond_its_page(
            made(folder / "beyond", table, rows=[(1, None, "x" * 200, None)], page_size=512)
        ),
    ]


def _with_a_record_beyond_its_page(path):
    """Let the one record of a database, and the text in it, state 180 bytes more than there are."""
    data = path.read_bytes()
    record, text = (bytes([0x81, 0x4E]), bytes([0x83, 0x1D]))
    head = data.rfind(record, 0, data.rfind(b"x" * 200))
    assert data[head:].count(text) == 1
    path.write_bytes(data[:head] + data[head:].replace(record, b"\x83\x02").replace(text, b"\x86\x05"))
    return path


def damaged(data, chance):
    """Return a database with some bytes changed, mostly those that say where something is."""
    data = bytearray(data)
    size = int.from_bytes(data[16:18], "big")
    for _ in range(chance.choice((1, 1, 2, 5, 30))):
        page = chance.randrange(len(data) // size) * size
        how = chance.randrange(7)
        if how == 0:
            data[chance.randrange(100, len(data))] = chance.randrange(256)
        elif how == 1:
            data[page + chance.randrange(12)] = chance.randrange(256)
        elif how == 2:
            data[page + chance.randrange(min(80, size))] = chance.choice((0, 1, 2, 5, 13, 127, 128, 255))
        elif how == 3:
            other = chance.randrange(len(data) // size) * size
            data[page : page + 100] = data[other : other + 100]
        elif how == 4:
            at = chance.randrange(100, len(data) - 4)
            data[at : at + 4] = chance.randrange(len(data) // size + 3).to_bytes(4, "big")
        elif how == 5:
            at = page + 8 + 2 * chance.randrange(12)
            data[at : at + 2] = chance.randrange(1 << 16).to_bytes(2, "big")
        else:
            data[chance.randrange(16, 100)] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.05 else data)


def campaign(inputs, seed=1):
    """Compare that many damaged databases; return how many tables of them C read."""
    chance = random.Random(seed)
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        sound = [path.read_bytes() for path in seeds(Path(folder))]
        place = Path(folder, "damaged")
        for _ in range(inputs):
            place.write_bytes(damaged(chance.choice(sound), chance))
            usual = chance.random() < 0.8
            kinds = dict(zip("krsb", KINDS if usual else chance.choices(KINDS, k=4), strict=True))
            only = sqlite.Filter("k", ((3, 50), (90, 90))) if chance.random() < 0.3 else sqlite.EVERY_ROW
            try:
                taken += compared(place, kinds, only)
            except AssertionError:
                Path(tempfile.gettempdir(), "differs.sqlite").write_bytes(place.read_bytes())
                print(kinds, only)
                raise
    return taken


def sanitized(inputs, seed=1, library=None):
    """Run a campaign in a process of its own, with a library that stops at the first wrong access."""
    with tempfile.TemporaryDirectory() as folder:
        target = library or sanitized_library(Path(folder))
        options = ["--inputs", str(inputs), "--seed", str(seed), "--library", str(target)]
        command = [sys.executable, __file__, *options]
        return subprocess.run(command, env=watching(), capture_output=True, text=True, check=False)


def main():
    """Run a campaign as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--library", type=Path, default=library.LIBRARY_FILE)
    parser.add_argument("--sanitized", action="store_true")
    chosen = parser.parse_args()
    if chosen.sanitized:
        done = sanitized(chosen.inputs, chosen.seed)
        print(done.stdout + done.stderr, end="")
        return done.returncode
    library.LIBRARY_FILE = chosen.library
    library._loaded.cache_clear()
    if library.absence() is not None:
        print(f"no native reader: {library.absence()}")
        return 1
    taken = campaign(chosen.inputs, chosen.seed)
    print(f"{chosen.inputs} databases read alike; {taken} tables of them by C")
    return 0


if __name__ == "__main__":
    sys.exit(main())
