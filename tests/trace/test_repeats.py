"""Events that were written twice count once; events that only resemble each other all count."""

import polars as pl
from writing import compact, finding_codes, kernel, names, op, read

from ccl_bench.trace.quality import drop_repeated


def test_an_event_that_stands_twice_counts_once_and_is_reported():
    content = read(compact([kernel("gemm", 5), kernel("gemm", 20), kernel("gemm", 5)]))
    assert content.table("kernels")["start_ns"].to_list() == [5_000, 20_000]
    (finding,) = content.findings
    assert (finding.code, finding.count, finding.touches) == ("events-repeated", 1, ("kernels",))


def test_three_copies_leave_one_and_are_two_too_many():
    content = read(compact([op("a", 1), op("b", 2), op("a", 1), op("a", 1), op("b", 2)]))
    assert names(content) == ["a", "b"]
    assert [finding.count for finding in content.findings] == [2 + 1]


def test_events_that_differ_in_anything_all_count():
    alike = [kernel("gemm", 5), kernel("gemm", 5, dur=11), kernel("gemm", 5, stream=8), kernel("add", 5)]
    content = read(compact([*alike, kernel("gemm", 5, correlation=2)]))
    assert content.table("kernels").height == 5
    assert finding_codes(content) == ["streams-overlap"]


def test_rows_keep_their_order_whether_it_is_that_of_time_or_not():
    ordered = pl.DataFrame({"start_ns": [1, 1, 2, 2, 3], "name": ["b", "a", "c", "c", "d"]})
    shuffled = pl.DataFrame({"start_ns": [3, 1, 3, 1, 3], "name": ["d", "b", "d", "a", "e"]})
    tables = {"cpu_ops": ordered, "launches": shuffled}
    tables = {name: rows.with_columns(end_ns=pl.col("start_ns") + 1) for name, rows in tables.items()}
    kept, findings = drop_repeated(tables, "trace.json")
    assert kept["cpu_ops"]["name"].to_list() == ["b", "a", "c", "d"]
    assert kept["launches"]["name"].to_list() == ["d", "b", "a", "e"]
    assert [(finding.touches, finding.count) for finding in findings] == [
        (("cpu_ops",), 1),
        (("launches",), 1),
    ]


def test_a_table_without_times_is_left_as_it_is():
    devices = pl.DataFrame({"device": [0, 0]})
    kept, findings = drop_repeated({"devices": devices}, "trace.json")
    assert kept["devices"].height == 2
    assert not findings
