"""Times in Kineto files: exact to the nanosecond, and left out where they cannot be true."""

import pytest
from writing import LAYOUTS, Text, compact, event, kernel, names, read

from ccl_bench.base.errors import InputError

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


def rows(content, table):
    return content.table(table).to_dicts()


@layouts
def test_seventeen_digit_microseconds_keep_every_nanosecond(write):
    content = read(write([kernel(ts=Text("1706850122846038.123"), dur=Text("10.001"))]))
    row = rows(content, "kernels")[0]
    assert row["start_ns"] == 1_706_850_122_846_038_123
    assert row["end_ns"] == 1_706_850_122_846_038_123 + 10_001


@pytest.mark.parametrize("whole", ["8796093022208", "9999999999999", "4354294103889"])
def test_thirteen_digit_microseconds_keep_every_nanosecond(whole):
    content = read(compact([kernel(ts=Text(f"{whole}.{n:03}"), correlation=n) for n in range(1000)]))
    assert content.table("kernels")["start_ns"].to_list() == [int(whole) * 1000 + n for n in range(1000)]


def test_long_times_in_a_later_piece_keep_every_nanosecond(monkeypatch):
    monkeypatch.setattr("ccl_bench.trace.values.BLOCK_BYTES", 256)
    stamps = ["1706850122846030", *(f"170685012284603{n}.123" for n in range(1, 10))]
    content = read(compact([kernel(ts=Text(stamp), correlation=n) for n, stamp in enumerate(stamps)]))
    whole = 1_706_850_122_846_030_000
    assert content.table("kernels")["start_ns"].to_list() == [
        whole,
        *(whole + n * 1000 + 123 for n in range(1, 10)),
    ]


@layouts
def test_base_time_is_added(write):
    base = 1_711_964_646_000_000_000
    content = read(write([kernel(ts=Text("4458676983543.183"), dur=1)], baseTimeNanoseconds=base))
    assert rows(content, "kernels")[0]["start_ns"] == base + 4_458_676_983_543_183


@layouts
def test_base_time_after_the_events_is_added(write):
    content = read(write([kernel(ts=5)], {"displayTimeUnit": "ms", "baseTimeNanoseconds": 1_000}))
    assert rows(content, "kernels")[0]["start_ns"] == 1_000 + 5_000
    assert content.findings == []


@pytest.mark.parametrize("base", [-5, "x", None, [], 10**30, 1.5, True, Text("1" * 5000)])
def test_an_impossible_base_time_adds_nothing(base):
    ts = rows(read(compact([kernel(ts=5)], baseTimeNanoseconds=base)), "kernels")[0]["start_ns"]
    assert ts in {5_000, 5_001}


@pytest.mark.parametrize("base", [0, 1_711_964_646_000_000_000])
@pytest.mark.parametrize(
    "dur",
    [
        -1,
        -5.5,
        Text("18446744073709551615"),
        Text("18446744073709551.615"),
        Text("9223372036854775.807"),
        Text("1e300"),
        86_400_000_001,
        "abc",
        "1e999999",
        "NaN",
        None,
    ],
)
def test_an_impossible_duration_is_left_out_and_reported(base, dur):
    events = [kernel(f"k{n}", 1_000 + n) for n in range(5)] + [kernel("odd", 1_100, dur)]
    content = read(compact(events, baseTimeNanoseconds=base))
    assert names(content, "kernels") == [f"k{n}" for n in range(5)]
    (finding,) = content.findings
    assert (finding.code, finding.count, finding.touches) == ("impossible-time", 1, ("kernels",))


@pytest.mark.parametrize(
    "ts", [0, -1, Text("18446744073709551615"), Text("9223372036854775807"), None, "x", "1e999999"]
)
def test_an_impossible_start_is_left_out_and_reported(ts):
    events = [kernel(f"k{n}", 1_706_850_122_846_038 + n) for n in range(5)] + [kernel("odd", ts)]
    content = read(compact(events))
    assert names(content, "kernels") == [f"k{n}" for n in range(5)]
    assert [(f.code, f.count) for f in content.findings] == [("impossible-time", 1)]


def test_impossible_times_among_long_ones_are_left_out_too():
    stamps = [Text(f"170685012284603{n}.123") for n in range(5)]
    odd = [Text("0.001"), Text("1e999999"), Text("99999999999999999999.5"), "NaN", "sNaN"]
    events = [kernel(f"k{n}", ts) for n, ts in enumerate(stamps)] + [kernel("odd", ts) for ts in odd]
    content = read(compact(events))
    assert names(content, "kernels") == [f"k{n}" for n in range(5)]
    assert [(f.code, f.count) for f in content.findings] == [("impossible-time", 5)]


@pytest.mark.parametrize(("impossible", "is_refused"), [(10, False), (11, True)])
def test_a_trace_of_which_most_times_are_impossible_is_refused(impossible, is_refused):
    # 10^17 us are beyond what nanoseconds of 64 bits hold.
    events = [kernel(f"k{n}", 10**17 if n < impossible else 20 * n, correlation=n + 1) for n in range(20)]
    if is_refused:
        with pytest.raises(InputError, match="11 of 20 rows of kernels have no possible time"):
            read(compact(events))
    else:
        assert read(compact(events)).height("kernels") == 10


def test_an_event_of_no_length_is_kept():
    content = read(compact([event("gpu_memset", "set", 5, 0)]))
    row = content.table("memcpy").to_dicts()[0]
    assert (row["start_ns"], row["end_ns"]) == (5_000, 5_000)
    assert content.findings == []
