"""C reads tables of SQLite databases to what SQLite reads, and leaves to SQLite what is unusual."""

import bisect
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from both_ways import needs_native
from databases_both_ways import KINDS, ORIGIN, campaign, compared, made, reading, sanitized
from fuzzing import SHARED, sanitized_library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccl_bench.trace import memory
from ccl_bench.trace.formats.nsys.reader import read_nsys
from ccl_bench.trace.native import library
from ccl_bench.trace.sqlite import EVERY_ROW, Database, Filter, open_database

pytestmark = needs_native
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: apt-get install gcc")

TABLE = "CREATE TABLE t (k INTEGER, r REAL, s TEXT, b BLOB)"
USUAL = dict(zip("krsb", KINDS, strict=True))


def rows(count):
    return [(n, n / 8, f"name {n}", b"\x01" * (n % 5)) for n in range(count)]


def numbered(count):
    return [(n, f"name {n}") for n in range(count)]


# ---- what is read ----

WHOLE = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 127, 128, 2**15, 2**23, 2**31, 2**47, 2**48, 2**53 + 1, -(2**47) - 1]),
)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.integers(400, 3000).map(lambda length: "é" * length),
)
VALUE = st.one_of(st.none(), WHOLE, st.floats(), TEXT, st.binary(max_size=2000))
LIKELY = {"INT": WHOLE, "REAL": st.floats() | WHOLE, "TEXT": TEXT}
TYPES = (
    "INTEGER",
    "INT",
    "BIGINT NOT NULL DEFAULT 0",
    "REAL",
    "DOUBLE",
    "TEXT",
    "VARCHAR(9)",
    "BLOB",
    "",
    "NUMERIC",
)
KEYS = ("INTEGER PRIMARY KEY", "INTEGER PRIMARY KEY DESC", "INT PRIMARY KEY", "INTEGER UNIQUE", "INTEGER")


@st.composite
def databases(draw):
    """Return what is done to make a table, and as what its columns are read."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    names = [f"c{n}" for n in range(len(types))]
    values = []
    for declared in types:
        likely = next((found for part, found in LIKELY.items() if part in declared), VALUE)
        values.append(
            draw(st.sampled_from([likely, likely | st.none(), VALUE])).filter(lambda v: v is not None)
            if "NOT NULL" in declared
            else draw(st.sampled_from([likely, likely | st.none(), VALUE]))
        )
    key = draw(st.sampled_from(KEYS))
    table = f"CREATE TABLE t (k {key}, {', '.join(map(' '.join, zip(names, types, strict=True)))})"
    if "PRIMARY KEY" in key and draw(st.integers(0, 9)) == 0:
        table += " WITHOUT ROWID"
    keys = draw(st.lists(WHOLE, unique=True, max_size=60))
    filled = [(number, *(draw(value) for value in values)) for number in keys]
    added = draw(st.sampled_from(["", "INTEGER", "TEXT DEFAULT 'é'", "REAL DEFAULT 5", "INT DEFAULT -7"]))
    after = [f"DELETE FROM t WHERE k % {draw(st.integers(2, 9))} = 0"] if draw(st.booleans()) else []
    after += [f"ALTER TABLE t ADD COLUMN late {added}"] if added else []
    after += draw(
        st.lists(
            st.sampled_from(["VACUUM", "CREATE INDEX IF NOT EXISTS i ON t (k)", "PRAGMA journal_mode=WAL"])
        )
    )
    kinds = {name: draw(st.sampled_from(KINDS)) for name in ("k", *names, "late", "absent")}
    for name, declared in zip(names, types, strict=True):
        if draw(st.booleans()):
            natural = {"INT": "integer", "REAL": "real", "TEXT": "text"}
            kinds[name] = next((kind for part, kind in natural.items() if part in declared), kinds[name])
    before = [f"PRAGMA auto_vacuum={draw(st.sampled_from([0, 0, 0, 1, 2]))}"]
    before += [f"PRAGMA encoding='{draw(st.sampled_from(['UTF-8', 'UTF-8', 'UTF-8', 'UTF-16le']))}'"]
    form = {
        "page_size": draw(st.sampled_from([512, 1024, 4096, 65536])),
        "reserved": draw(st.sampled_from([0, 0, 8])),
    }
    return [*before, table], filled, after, kinds, form


@settings(suppress_health_check=list(HealthCheck))
@given(databases(), st.booleans())
def test_any_table_is_read_to_what_sqlite_reads(tmp_path_factory, made_of, is_filtered):
    statements, filled, after, kinds, form = made_of
    path = tmp_path_factory.mktemp("any") / "x.sqlite"
    made(path, *statements, rows=filled, **form)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in after:
            database.execute(statement)
    compared(path, kinds, Filter("k", ((-5, 2**20), (2**47, 2**53 + 1))) if is_filtered else EVERY_ROW)


@pytest.mark.parametrize(
    ("page_size", "reserved"),
    [*((512 << power, 0) for power in range(8)), (512, 32), (4096, 32), (65536, 32)],
)
def test_a_table_of_many_pages_is_read_by_c(tmp_path, page_size, reserved):
    long = [(n, n / 8, "x" * (37 * n % 5000), b"\x00" * (n % 1300)) for n in range(500)]
    path = made(tmp_path / "x.sqlite", TABLE, rows=rows(1500) + long, page_size=page_size, reserved=reserved)
    assert compared(path, USUAL) == 1
    assert compared(path, USUAL, Filter("k", ((7, 7), (100, 400)))) == 1


def test_more_rows_than_a_block_holds_are_read(tmp_path):
    path = made(tmp_path / "x.sqlite", TABLE, rows=rows(3 * 65_536 + 5))
    assert compared(path, USUAL) == 1


UNREAD = {
    "text as a number": ("text", 5),
    "a blob as text": ("text", b"x"),
    "text that is no UTF-8": ("text", "CAST(x'ff' AS TEXT)"),
    "a surrogate": ("text", "CAST(x'eda080' AS TEXT)"),
    "a character too long": ("text", "CAST(x'c0af' AS TEXT)"),
    "a number as bytes": ("blob", 5),
}


@pytest.mark.parametrize(("kind", "value"), UNREAD.values(), ids=UNREAD)
def test_what_sqlite_or_python_converts_is_left_to_them(tmp_path, kind, value):
    given = value if isinstance(value, str) else "?"
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (v)", rows=[("a" if kind == "text" else b"a",)])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"INSERT INTO t VALUES ({given})", () if isinstance(value, str) else (value,))
    assert compared(path, {"v": kind}) == 0


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (k INTEGER PRIMARY KEY, s TEXT) WITHOUT ROWID",
        "PRAGMA encoding='UTF-16le'",
        "PRAGMA encoding='UTF-16be'",
    ],
)
def test_layouts_that_c_does_not_know_are_left_to_sqlite(tmp_path, statement):
    statements = [statement] if "CREATE" in statement else [statement, "CREATE TABLE t (k INTEGER, s TEXT)"]
    path = made(tmp_path / "x.sqlite", *statements, rows=[(1, "a"), (2, "b")])
    assert compared(path, {"k": "integer", "s": "text"}) == 0


def test_rows_come_in_the_order_of_the_table_also_where_an_index_has_another(tmp_path):
    path = made(
        tmp_path / "x.sqlite", "CREATE TABLE t (k INTEGER, s TEXT)", rows=[(5, "a"), (2, "b"), (3, "c")]
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE INDEX i ON t (k)")
    assert compared(path, {"k": "integer"}) == 1
    assert compared(path, {"k": "integer", "s": "text"}, Filter("k", ((1, 9),))) == 1
    with open_database(path, "x", ORIGIN) as database:
        database.pages = None
        assert database.frame("t", {"k": "integer"})["k"].to_list() == [5, 2, 3]


def test_a_default_of_a_column_that_came_later_is_left_to_sqlite(tmp_path):
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (k INTEGER)", rows=[(1,), (2,)])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("ALTER TABLE t ADD COLUMN s TEXT DEFAULT 'x'")
        database.execute("ALTER TABLE t ADD COLUMN n INTEGER")
    assert compared(path, {"k": "integer", "n": "integer"}) == 1
    assert compared(path, {"k": "integer", "s": "text"}) == 0


def test_a_table_by_another_name_in_the_schema_is_what_sqlite_takes_it_for(tmp_path):
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (k)", "CREATE TABLE t2 (k)", rows=[(1,)])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema=ON")
        database.execute(
            "UPDATE sqlite_master SET sql = CASE name WHEN 't' THEN 'CREATE TABLE t2 (k)' "
            "ELSE 'CREATE TABLE t (k)' END"
        )
    compared(path, {"k": "integer"})


@pytest.mark.parametrize("ranges", [((1, 20), (2, 3), (4, 5)), ((20, 22), (3, 5)), ((5, 5), (2, 4))])
def test_ranges_that_are_not_apart_and_in_order_are_left_to_sqlite(tmp_path, ranges):
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (k INTEGER PRIMARY KEY, s TEXT)", rows=numbered(30))
    assert compared(path, {"k": "integer"}, Filter("k", ranges)) == 0


@pytest.mark.parametrize("name", ['"t x"', "[t x]", "`t x`", "'t x'", '"t(x"', "t"])
def test_a_table_is_read_by_c_however_its_name_is_quoted(tmp_path, name):
    path = made(tmp_path / "x.sqlite", f"CREATE TABLE {name} (k INTEGER PRIMARY KEY, s TEXT)")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"INSERT INTO {name} VALUES (5, 'a')")
    assert compared(path, {"k": "integer", "s": "text"}) == 1


@pytest.mark.parametrize("name", ["-journal", "-wal"])
def test_a_database_with_a_journal_is_left_to_sqlite(tmp_path, name):
    path = made(tmp_path / "x.sqlite", TABLE, rows=rows(10))
    path.with_name(path.name + name).write_bytes(b"\x01" * 100)
    assert compared(path, USUAL) == 0


def test_a_generated_column_leaves_its_table_to_sqlite(tmp_path):
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (g AS (k + 1), k INTEGER)")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("INSERT INTO t VALUES (5)")
    assert compared(path, {"k": "integer", "g": "integer"}) == 0


def test_a_table_for_which_there_is_no_memory_is_left_to_sqlite(tmp_path, monkeypatch):
    path = made(tmp_path / "x.sqlite", TABLE, rows=rows(10))

    def without_memory(*_):
        raise MemoryError

    monkeypatch.setattr(library, "taken_table", without_memory)
    assert compared(path, USUAL) == 0


# ---- what holds for it ----


def test_texts_and_rows_count_as_memory_as_they_do_without_c(tmp_path, monkeypatch):
    path = made(tmp_path / "x.sqlite", TABLE, rows=rows(2000))
    counted = {}
    for way in ("1", "0"):
        held = []
        monkeypatch.setattr(memory, "hold", held.append)
        monkeypatch.setenv(library.VARIABLE, way)
        reading(path, USUAL)
        counted[way] = sum(held)
    assert counted["1"] >= counted["0"] > 2000 * 4 * 16


def test_more_rows_or_text_than_the_file_can_hold_are_refused_as_by_sqlite(tmp_path, monkeypatch):
    path = made(tmp_path / "x.sqlite", TABLE, rows=rows(2000))
    for bound in ("_most_rows", "_most_text"):
        found = {}
        for way in ("1", "0"):
            monkeypatch.setenv(library.VARIABLE, way)
            with open_database(path, "x", ORIGIN) as database:
                setattr(database, bound, 500)
                found[way] = database.frame("t", USUAL).rows(), database.damage
        assert found["1"] == found["0"]
        assert "than the file can hold" in found["0"][1]["t"]


def test_a_file_that_took_the_place_of_another_is_left_to_sqlite(tmp_path, monkeypatch):
    path = made(tmp_path / "x.sqlite", TABLE, rows=rows(10))
    other = made(tmp_path / "y.sqlite", TABLE, rows=rows(20))
    found = Database._found_tables

    def replaced(self):
        tables = found(self)
        other.replace(path)
        return tables

    monkeypatch.setattr(Database, "_found_tables", replaced)
    with open_database(path, "x", ORIGIN) as database:
        assert database.pages is None
        assert database.frame("t", USUAL).height == 10


def _with_bytes(path, changes):
    data = bytearray(path.read_bytes())
    for place, new in changes.items():
        data[place : place + len(new)] = new
    path.write_bytes(data)


POINTERS = {
    "to itself": 2,
    "to another that is read": 3,
    "to the schema": 1,
    "to nothing": 0,
    "beyond the file": 2**31,
}


@pytest.mark.parametrize("page", POINTERS.values(), ids=POINTERS)
def test_pointers_between_pages_lead_no_page_twice_and_none_outside(tmp_path, page):
    path = made(tmp_path / "x.sqlite", TABLE, rows=rows(300), page_size=512)
    assert path.read_bytes()[512] == 5
    _with_bytes(path, {512 + 8: page.to_bytes(4, "big")})  # the rightmost page below the root
    assert compared(path, USUAL) == 0


def test_a_long_text_in_a_circle_of_pages_is_left_to_sqlite(tmp_path):
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (s TEXT)", rows=[("x" * 3000,)], page_size=512)
    first = 3
    _with_bytes(path, {(first - 1) * 512: first.to_bytes(4, "big")})
    assert compared(path, {"s": "text"}) == 0


def varint(number):
    """Return a number as SQLite writes it, of eight bytes at most."""
    sevens = [number >> shift & 0x7F for shift in range(0, 56, 7)]
    while len(sevens) > 1 and not sevens[-1]:
        sevens.pop()
    return bytes([seven | 0x80 for seven in sevens[:0:-1]] + [sevens[0]])


def _with_cell(path, cell, *more):
    """Let the table of a database have one row, and its file these pages more."""
    data = bytearray(path.read_bytes())
    leaf = bytearray(4096)
    place = len(leaf) - len(cell)
    leaf[0], leaf[3:5], leaf[5:7], leaf[8:10] = (
        13,
        b"\0\1",
        place.to_bytes(2, "big"),
        place.to_bytes(2, "big"),
    )
    leaf[place:] = cell
    data[4096:8192] = leaf
    data += b"".join(more)
    data[28:32] = (len(data) // 4096).to_bytes(4, "big")
    path.write_bytes(data)
    return path


def test_a_length_of_nine_bytes_is_left_to_sqlite_which_takes_one_bit_less_of_it(tmp_path):
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (k INTEGER, s TEXT, x TEXT)")
    record = bytearray(b"\x05\x01" + varint(13 + 2 * 4500) + b"\x0f\x07" + b"A" * 1802)
    record[908:912] = (3).to_bytes(4, "big")
    length = b"\x80" * 7 + bytes([0x80 | 39, 8])  # 5000 to SQLite, 9992 with all bits of the last byte
    further = [number.to_bytes(4, "big") + b"B" * 4092 for number in (4, 0)]
    _with_cell(path, length + b"\x01" + bytes(record) + (3).to_bytes(4, "big"), *further)
    kinds = {"k": "integer", "s": "text"}
    assert compared(path, kinds) == 0
    (frames, _, _), _ = reading(path, kinds)
    assert frames["t"]["s"].str.count_matches("A").to_list() == [902]


def test_a_head_longer_than_any_of_sqlite_is_left_to_it(tmp_path):
    path = made(tmp_path / "x.sqlite", "CREATE TABLE t (k INTEGER, s TEXT)", rows=[(7, "x" * 200_000)])
    data = path.read_bytes()
    cell = int.from_bytes(data[4096 + 8 : 4096 + 10], "big") + 4096
    head = data.index(b"\x05\x01", cell)  # its length, and the type of the first column
    for length, taken in ((90_000, 1), (150_000, 0)):
        _with_bytes(path, {head: varint(length) + b"\x09\x00"})
        assert compared(path, {"k": "integer"}) == taken


def test_no_order_of_pages_lets_a_file_be_read_many_times(tmp_path):
    path = made(
        tmp_path / "x.sqlite", TABLE, rows=[(n, 0, "x" * 380, b"") for n in range(4000)], page_size=512
    )
    data = bytearray(path.read_bytes())
    leaves, pointers = _leaves(data)
    contents = [bytes(data[(leaf - 1) * 512 : leaf * 512]) for leaf in leaves]
    for content, leaf, pointer in zip(contents, _behind_each_other(leaves), pointers, strict=True):
        data[(leaf - 1) * 512 : leaf * 512] = content
        data[pointer : pointer + 4] = leaf.to_bytes(4, "big")
    path.write_bytes(data)
    with open_database(path, "x", ORIGIN) as database:
        before = _read_bytes()
        assert database.frame("t", {"k": "integer"}).height == 4000
        assert _read_bytes() - before < 4 * len(data)


def _read_bytes():
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


def _leaves(data, page=2):
    """Return the pages with rows in the order of the table, and where in the file each is pointed to."""
    start = (page - 1) * 512
    children = int.from_bytes(data[start + 3 : start + 5], "big")
    inner = [
        start + int.from_bytes(data[start + 12 + 2 * n : start + 14 + 2 * n], "big") for n in range(children)
    ]
    leaves, pointers = [], []
    for pointer in [*inner, start + 8]:
        child = int.from_bytes(data[pointer : pointer + 4], "big")
        below = ([child], [pointer]) if data[(child - 1) * 512] == 13 else _leaves(data, child)
        leaves += below[0]
        pointers += below[1]
    return leaves, pointers


def _behind_each_other(leaves):
    """Return pages so that of a run, which doubles as long as the next page is wanted, one page is used."""
    free, order, run = sorted(leaves), [], 1
    first = free[0]
    while free:
        place = bisect.bisect_left(free, first)
        leaf = free.pop(place if place < len(free) else 0)
        order.append(leaf)
        run = min(2 * run, 512) if leaf == first else max(run // 2, 1)
        first = leaf + run
    return order


def test_damaged_databases_give_the_same_with_and_without_c():
    assert campaign(150) > 20


@needs_gcc
def test_damaged_databases_are_read_within_their_memory(watched_library):
    done = sanitized(100, library=watched_library)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


BEYOND = {
    "more text than there is room for": ("column->room - column->used < size", "column->room < size"),
    "a record longer than its page": ("if (local + (is_long ? 4 : 0) > end - at) return false;", ""),
    "fields beyond the record": (
        "return at == end ? place == head->length : place <= head->length;",
        "return true;",
    ),
}


def ended_beyond(tmp_path, change):
    """Return how a campaign ends where the reader was changed."""
    before, after = change
    shared = tmp_path / "native"
    shutil.copytree(SHARED, shared)
    text = (shared / "sqlite.c").read_text()
    assert text.count(before) == 1
    (shared / "sqlite.c").write_text(text.replace(before, after))
    return sanitized(400, library=sanitized_library(tmp_path, shared=shared))


@needs_gcc
def test_an_access_outside_of_a_page_would_be_seen(tmp_path):
    assert ended_beyond(tmp_path, BEYOND["a record longer than its page"]).returncode


@pytest.mark.skipif("CCL_BENCH_CORPUS" not in os.environ, reason="CCL_BENCH_CORPUS is not set")
def test_real_exports_are_read_alike_and_not_by_sqlite(monkeypatch):
    files = sorted(Path(os.environ["CCL_BENCH_CORPUS"], "nsys").glob("*/*.sqlite"))
    assert len(files) >= 4
    for file in files:
        refused = []
        scanned = Database._scanned

        def noted(self, table, kinds, only, *rest, refused=refused, scanned=scanned):
            found = scanned(self, table, kinds, only, *rest)
            if self.pages and found is None and not only.sql and {*kinds} & self.columns[table]:
                refused.append(table)
            return found

        monkeypatch.setattr(Database, "_scanned", noted)
        for part in _parts(file):
            found = read_nsys(file, file.name, part)
            with monkeypatch.context() as context:
                context.setenv(library.VARIABLE, "0")
                expected = read_nsys(file, file.name, part)
            assert not refused
            assert found.findings == expected.findings
            assert all(table.equals(found.tables[name]) for name, table in expected.tables.items())
        monkeypatch.undo()


def _parts(file):
    from ccl_bench.trace.formats.nsys.processes import processes

    return [process.id for process in processes(file)]
