"""Exports that are damaged, that are none, or whose author means harm."""

import itertools
import random
import sqlite3
import time
from types import SimpleNamespace

import pytest
from exports import OWNER, START_NS, changed, codes, content, export, kernel, mark, rows

from ccl_bench.base.errors import InputError
from ccl_bench.storage import SQLITE_MAGIC
from ccl_bench.trace import sqlite
from ccl_bench.trace.formats.nsys.database import open_database
from ccl_bench.trace.formats.nsys.processes import processes
from ccl_bench.trace.native.library import VARIABLE

MANY = 10_000


def small(path, **more):
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(n, n + 1) for n in range(3)],
        "NVTX_EVENTS": [mark(1, 2, "a")],
    }
    return export(path, tables | more, ("mm",))


@pytest.fixture
def place(tmp_path):
    return small(tmp_path / "x.sqlite")


@pytest.fixture
def large(tmp_path):
    """Write an export whose kernels take up most of it."""
    kernels = [kernel(1_000 * n, 1_000 * n + 900) for n in range(MANY)]
    return export(
        tmp_path / "large.sqlite",
        {"NVTX_EVENTS": [mark(1, 2, "a")], "CUPTI_ACTIVITY_KIND_KERNEL": kernels},
        ("mm",),
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SQLITE_MAGIC,
        SQLITE_MAGIC + bytes(84),
        SQLITE_MAGIC + random.Random(1).randbytes(1 << 16),
        b"no database",
    ],
    ids=["empty", "magic", "header", "random", "text"],
)
def test_what_is_no_database_is_refused(tmp_path, data):
    place = tmp_path / "x.sqlite"
    place.write_bytes(data)
    for read in (content, processes):
        with pytest.raises(InputError) as error:
            read(place)
        assert error.value.where
        assert error.value.fix


def test_a_directory_and_a_missing_file_are_refused(tmp_path):
    for place in (tmp_path, tmp_path / "absent.sqlite"):
        with pytest.raises(InputError):
            content(place)


def test_a_database_of_something_else_is_refused(tmp_path):
    place = changed(tmp_path / "x.sqlite", "CREATE TABLE users (id, password)")
    with pytest.raises(InputError, match="not an export of Nsight Systems"):
        content(place)


def test_a_truncated_export_gives_what_stands_before(large):
    data = large.read_bytes()
    large.write_bytes(data[: len(data) // 2])
    found = content(large)
    assert "table-damaged" in codes(found)
    assert 1000 < found.table("kernels").height < MANY
    damaged = next(finding for finding in found.findings if finding.code == "table-damaged")
    assert damaged.severity == "error"


def test_no_cut_gives_anything_but_rows_or_a_refusal(place):
    """At eight places of the first page, and at both ends and in the middle of each of the others."""
    data = place.read_bytes()
    for size in (*range(0, 4096, 512), *range(4096, len(data), 2048)):
        place.write_bytes(data[:size])
        try:
            found = content(place)
        except InputError:
            continue
        assert found.table("kernels").height <= 3


def test_no_flipped_bytes_give_anything_but_rows_or_a_refusal(place):
    data, chance = place.read_bytes(), random.Random(7)
    for _ in range(40):
        broken = bytearray(data)
        for _ in range(chance.randrange(1, 40)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        place.write_bytes(broken)
        try:
            found = content(place)
        except InputError:
            continue
        assert found.table("kernels").height <= len(data)


def test_absent_tables_are_empty_and_absent_columns_null(tmp_path):
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": [{"start": 1, "end": 2, "globalPid": OWNER, "deviceId": 0}]}
    found = content(export(tmp_path / "x.sqlite", tables))
    assert rows(found.table("kernels"), "start_ns", "device", "stream", "grid_blocks") == [(1, 0, None, None)]
    assert all(found.table(name).height == 0 for name in ("memcpy", "launches", "annotations", "counters"))


def test_values_of_another_type_are_null(tmp_path):
    odd = kernel(
        1, 2, streamId="seven", correlationId=b"\x00", gridX=2.5, gridY=1, gridZ=1, registersPerThread=8.0
    )
    found = content(export(tmp_path / "x.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [odd]}, ("mm",)))
    assert rows(found.table("kernels"), "stream", "correlation", "grid_blocks", "registers") == [
        (None, None, None, 8)
    ]


def test_a_process_with_the_last_number_there_is_has_its_rows(tmp_path):
    last = 2**63 - 1
    called = {"start": 1, "end": 2, "globalTid": last, "correlationId": 1, "nameId": 1}
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 2, globalPid=last)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [called],
    }
    found = content(export(tmp_path / "x.sqlite", tables, ("mm",)))
    assert (found.table("kernels").height, found.table("launches").height) == (1, 1)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (None, 2),
        (1, None),
        (5, 1),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), 0),
        ("x", 2),
        (1.5, 2),
        (10, 2 * 86_400 * 10**9),
    ],
)
def test_times_that_cannot_be_true_are_left_out(tmp_path, start, end):
    good = [kernel(n, n + 1) for n in range(5)]
    bad = kernel(3, 4) | {"start": start, "end": end}
    found = content(export(tmp_path / "x.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [*good, bad]}, ("mm",)))
    assert found.table("kernels").height == 5
    assert codes(found) == ["impossible-time"]


@pytest.mark.parametrize("sides", [(2**31, 2**31, 2), (2**62, 4, 1), (0, 1, 1), (-1, -1, 1), (1, "x", 1)])
def test_a_launch_shape_that_cannot_be_true_is_null(tmp_path, sides):
    shape = dict(zip(("gridX", "gridY", "gridZ"), sides, strict=True))
    found = content(
        export(tmp_path / "x.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 2, **shape)]}, ("mm",))
    )
    assert found.table("kernels")["grid_blocks"].to_list() == [None]


@pytest.mark.parametrize("start", [2**63 - 1, -5, "soon", 1.5, None])
def test_a_session_start_that_cannot_be_true_is_no_clock(tmp_path, start):
    session = {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": start}]}
    assert codes(content(small(tmp_path / "x.sqlite", **session))) == ["clock-unanchored"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "x", b"x", None])
def test_counters_that_are_no_numbers_are_left_out(tmp_path, value):
    more = {
        "TARGET_INFO_GPU_METRICS": [{"typeId": 0, "metricId": 1, "metricName": "SM Active"}],
        "GPU_METRICS": [{"timestamp": 1, "typeId": 0, "metricId": 1, "value": value}],
    }
    assert content(small(tmp_path / "x.sqlite", **more)).table("counters").is_empty()


def test_names_that_are_no_text_do_no_harm(tmp_path):
    strings = [b"\xff\xfe", "a\0b", 7, None, "x" * 100_000]
    place = export(
        tmp_path / "x.sqlite", {"NVTX_EVENTS": [mark(n, n + 1, text) for n, text in enumerate(strings)]}
    )
    names = content(place).table("annotations")["name"].to_list()
    assert names == ["\ufffd\ufffd", "a\0b", "7", "(unnamed)", "x" * 100_000]


def test_text_that_is_no_utf_8_loses_those_bytes_alone(tmp_path):
    place = export(tmp_path / "x.sqlite", {"NVTX_EVENTS": [mark(n, n + 1, f"range {n}") for n in range(3)]})
    changed(place, "UPDATE NVTX_EVENTS SET text = CAST(x'66fffe67' AS TEXT) WHERE start = 1")
    names = content(place).table("annotations")["name"].to_list()
    assert names == ["range 0", "f\ufffd\ufffdg", "range 2"]


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"


def test_a_view_is_never_read(place):
    changed(
        place,
        f"""DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;
        CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS}
            SELECT x AS start, x AS "end", 0 AS deviceId, {OWNER} AS globalPid FROM n;
        DROP TABLE StringIds;
        CREATE VIEW StringIds AS SELECT 1 AS id, zeroblob(1000000000) AS value;""",
    )
    began = time.process_time()
    found = content(place)
    assert time.process_time() - began < 5
    assert found.table("kernels").is_empty()
    (refused,) = (finding for finding in found.findings if finding.code == "tables-refused")
    assert (refused.severity, refused.count) == ("error", 2)
    assert "kernels" in refused.touches


@pytest.mark.parametrize("natively", ["1", "0"])
def test_a_generated_column_is_never_read(tmp_path, natively, monkeypatch):
    monkeypatch.setenv(VARIABLE, natively)
    place = changed(
        tmp_path / "x.sqlite",
        f"""CREATE TABLE StringIds (id, value);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", globalPid, deviceId, streamId AS (40 + 2),
            demangledName AS (length(hex(zeroblob(100000000)))));
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, {OWNER}, 0);""",
    )
    began = time.process_time()
    assert content(place).table("kernels")["stream"].to_list() == [None]
    assert time.process_time() - began < 2


def test_a_virtual_table_is_never_read(place):
    changed(
        place,
        f"""DROP TABLE NVTX_EVENTS;
        CREATE VIRTUAL TABLE NVTX_EVENTS USING fts5(start, "end", eventType, globalTid, text);
        INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, {OWNER}, 'a');""",
    )
    found = content(place)
    assert found.table("annotations").is_empty()
    assert "tables-refused" in codes(found)


def test_triggers_do_not_run_and_nothing_is_written(place):
    changed(place, "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM NVTX_EVENTS; END;")
    before = place.read_bytes()
    assert content(place).table("annotations").height == 1
    assert place.read_bytes() == before
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_an_open_export_cannot_be_written_nor_others_attached(place, tmp_path):
    with open_database(place) as found:
        for statement in ("DELETE FROM StringIds", f"ATTACH '{tmp_path / 'other'}' AS other"):
            with pytest.raises(sqlite3.DatabaseError):
                list(found.rows(statement))


def test_a_query_that_never_ends_is_stopped(place, monkeypatch):
    """Each look at the clock takes a second of it."""
    seconds = itertools.count()
    monkeypatch.setattr(sqlite, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with open_database(place) as found:
        began = next(seconds)
        with pytest.raises(InputError, match="reading stopped after 120 s"):
            list(found.rows(f"{ENDLESS} SELECT max(x) FROM n"))
        assert next(seconds) - began < 125


def test_a_table_cannot_give_more_rows_than_the_file_has_room_for(place):
    with open_database(place) as found:
        found._most_rows = 2
        assert found.frame("CUPTI_ACTIVITY_KIND_KERNEL", {"start": "integer"}).height <= 3
        assert "more rows" in found.damage["CUPTI_ACTIVITY_KIND_KERNEL"]


def test_a_default_in_the_schema_cannot_fill_the_memory(tmp_path):
    rows_without_text = ", ".join(f"({n}, {n + 1}, 59, {OWNER})" for n in range(5000))
    place = changed(
        tmp_path / "x.sqlite",
        f"""CREATE TABLE StringIds (id, value);
        CREATE TABLE NVTX_EVENTS (start, "end", eventType, globalTid);
        INSERT INTO NVTX_EVENTS VALUES {rows_without_text};
        ALTER TABLE NVTX_EVENTS ADD COLUMN text DEFAULT '{"x" * 100_000}';""",
    )
    found = content(place)
    assert found.table("annotations").height < 500
    assert "table-damaged" in codes(found)


def test_an_export_that_shows_no_processes_apart_is_one_trace(tmp_path):
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": [{"start": 1, "end": 2}], "NVTX_EVENTS": [mark(1, 2, "a")]}
    for row in tables["NVTX_EVENTS"]:
        row.pop("globalTid")
    found = content(export(tmp_path / "x.sqlite", tables))
    assert [found.table(name).height for name in ("kernels", "annotations")] == [1, 1]


def test_a_name_with_characters_of_an_address_is_a_name(tmp_path):
    folder = tmp_path / "a?mode=rwc#b%20c"
    folder.mkdir()
    place = small(folder / "x&y;z?.sqlite")
    assert content(place).table("kernels").height == 3


def test_a_cut_compressed_export_gives_what_stands_before(large):
    import gzip

    packed = large.with_suffix(".sqlite.gz")
    packed.write_bytes(gzip.compress(large.read_bytes())[:-20_000])
    found = content(packed)
    assert "table-damaged" in codes(found)
    assert 100 < found.table("kernels").height < MANY


def test_times_are_compared_in_one_table_of_the_file(tmp_path):
    found = content(small(tmp_path / "x.sqlite"))
    assert found.table("kernels")["start_ns"][0] == START_NS


def test_names_that_are_not_in_the_file_are_reported(place):
    changed(place, "DELETE FROM StringIds")
    found = content(place)
    (finding,) = [finding for finding in found.findings if finding.code == "names-missing"]
    assert finding.count == 1
    assert finding.severity == "error"
    assert {"kernels", "launches", "annotations"} <= {*finding.touches}
    assert found.table("kernels")["name"].to_list() == ["(unnamed kernel)"] * 3


def test_rows_without_a_name_of_their_own_lack_none(tmp_path):
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 2, None)], "NVTX_EVENTS": [mark(1, 2)]}
    assert "names-missing" not in codes(content(export(tmp_path / "x.sqlite", tables)))
