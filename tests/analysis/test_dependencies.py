"""What operations of one rank wait for: launches, streams, calls that block, and what ended just before."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.analysis.execution.dependencies import INFERRED, STREAM_WAIT, SYNCHRONISATION, add_dependencies

US = 1_000
NO_WAITS = pl.DataFrame(schema={"start_ns": pl.Int64, "thread": pl.Int64})
TYPES = dict.fromkeys(("start_ns", "end_ns", "lane", "correlation", "launch_ns"), pl.Int64)


def host(start: int, end: int, lane: int = 1, kind: str = "call", **more: Any) -> dict[str, Any]:
    return {"place": "host", "lane": lane, "start_ns": start, "end_ns": end, "kind": kind} | more


def work(start: int, end: int, lane: int = 7, kind: str = "compute", **more: Any) -> dict[str, Any]:
    return {"place": "device", "lane": lane, "start_ns": start, "end_ns": end, "kind": kind} | more


def depend(
    *operations: dict[str, Any], waits: tuple[tuple[int, int], ...] = (), has_device: bool = True
) -> list[dict[str, Any]]:
    """Return operations, given in order of start, with what they wait for; `waits` are (ns, thread)."""
    usual = {"correlation": None, "launch_ns": None, "name": "any"}
    every = pl.DataFrame([usual | each for each in operations], schema_overrides=TYPES | {"name": pl.String})
    assert every["start_ns"].is_sorted()
    made = pl.DataFrame([*waits], schema=NO_WAITS.schema, orient="row") if waits else NO_WAITS
    return add_dependencies(every, made, has_device=has_device).to_dicts()


def awaited(row: dict[str, Any]) -> tuple[int | None, int | None, bool]:
    return row["awaited"], row["tier"], row["at_end"]


def test_threads_that_take_turns_are_one_chain_and_each_stream_is_its_own() -> None:
    found = depend(
        host(0, 1000), host(500, 600, lane=3), host(1000, 2000, lane=2), work(1500, 1600, lane=8),
        host(2000, 3000), work(2500, 2600, lane=7),
    )  # fmt: skip
    assert [row["chain"] for row in found] == [0, 1, 0, 3, 0, 2]


@pytest.mark.parametrize(("start", "chain"), [(990, 0), (989, 1), (1000, 0)])
def test_threads_take_turns_if_they_overlap_for_at_most_a_hundredth(start: int, chain: int) -> None:
    found = depend(host(0, 1000), host(start, start + 1000, lane=2))
    assert [row["chain"] for row in found] == [0, chain]


def test_work_is_joined_to_its_launch_and_the_quickest_launches_give_the_latency() -> None:
    found = depend(
        host(0, 5, correlation=1), work(10, 20, correlation=1), host(100, 105, correlation=2),
        work(130, 250, correlation=2), host(200, 205, correlation=3), work(250, 260, correlation=3),
        work(300, 310), work(400, 410, correlation=9), host(500, 505),
        work(510, 520), work(530, 540, correlation=0),
    )  # fmt: skip
    # launches take 10 and 30 ns; the third waits for its stream. 10 + 5 % of 20 is 11.
    assert [row["launcher"] for row in found] == [None, 0, None, 2, None, 4, *[None] * 5]
    assert [row["latency_ns"] for row in found] == [None, 11, None, 11, None, 11, *[None] * 5]
    assert [awaited(row) for row in found] == [(None, None, False)] * 11


def test_a_stream_waits_for_the_latest_work_that_was_launched_on_another_before() -> None:
    operations = (
        host(0, 5, correlation=1), host(10, 15, correlation=2), work(20, 60, lane=8, correlation=1),
        work(25, 90, lane=9, correlation=2), host(60, 65, correlation=3), host(70, 75, correlation=4),
        work(100, 110, correlation=3), work(110, 120, correlation=4),
    )  # fmt: skip
    found = depend(*operations, waits=((50, 1),))
    assert [awaited(row) for row in found[6:]] == [(3, STREAM_WAIT, False), (None, None, False)]
    # a wait of another thread, or one after the launch, says nothing
    for wait in ((50, 2), (61, 1)):
        assert awaited(depend(*operations, waits=(wait,))[6]) == (None, None, False)


def test_a_stream_waits_for_no_work_that_ends_later_or_was_launched_later() -> None:
    found = depend(
        host(0, 5, correlation=1), work(20, 101, lane=8, correlation=1), host(60, 65, correlation=3),
        host(70, 75, correlation=2), work(80, 90, lane=9, correlation=2), work(100, 110, correlation=3),
        waits=((50, 1),),
    )  # fmt: skip
    assert awaited(found[5]) == (None, None, False)


def test_a_call_that_synchronises_ends_after_the_work_that_ended_last() -> None:
    found = depend(
        host(0, 5, correlation=1), work(20, 90, correlation=1), host(50, 300, kind="wait"),
        host(310, 320, kind="wait"),
    )  # fmt: skip
    assert awaited(found[2]) == (1, SYNCHRONISATION, True)
    assert awaited(found[3]) == (None, None, False)  # nothing ended during it


def test_a_call_does_not_wait_for_work_that_was_launched_later() -> None:
    found = depend(
        host(0, 100, kind="wait"), host(20, 25, lane=2, correlation=1), work(30, 90, correlation=1)
    )
    assert awaited(found[0]) == (None, None, False)


def test_a_copy_s_own_call_waits_for_it() -> None:
    copied = depend(host(0, 200 * US, correlation=1), work(20, 90, kind="memory", correlation=1))
    assert awaited(copied[0]) == (1, SYNCHRONISATION, True)
    computed = depend(host(0, 200 * US, correlation=1), work(20, 90, correlation=1))
    assert awaited(computed[0]) == (None, None, False)  # it went on for long after the kernel


@pytest.mark.parametrize(
    ("took", "after", "waits"),
    [
        (100 * US + 1, 0, True),
        (100 * US, 0, False),
        (200 * US, 12 * US, True),
        (200 * US, 12 * US + 1, False),
    ],
)
def test_a_long_call_may_have_waited_for_work_that_ended_just_before_it(
    took: int, after: int, waits: bool
) -> None:
    found = depend(host(0, 5, correlation=1), work(10, 10 + took - after, correlation=1), host(10, 10 + took))
    assert awaited(found[2]) == ((1, INFERRED, True) if waits else (None, None, False))


@pytest.mark.parametrize(
    ("start", "waits"), [(100 * US, True), (102 * US, True), (102 * US + 1, False), (90 * US, True)]
)
def test_late_work_waits_for_what_ended_at_most_12_us_before(start: int, waits: bool) -> None:
    operations = (
        host(0, 5, correlation=1), work(10, 90 * US, lane=8, correlation=1),
        host(60 * US, 60 * US + 5, correlation=2), work(start, start + 5, correlation=2),
    )  # fmt: skip
    assert awaited(depend(*operations)[3]) == ((1, INFERRED, False) if waits else (None, None, False))


@pytest.mark.parametrize(("start", "waits"), [(12 * US + 20, False), (12 * US + 21, True)])
def test_work_may_start_12_us_after_it_could(start: int, waits: bool) -> None:
    # Its stream is free at 20 ns; on stream 8 something ended at 5 us, which that work need not await.
    found = depend(
        host(0, 5, correlation=1), host(0, 5, lane=2, correlation=2), work(0, 20),
        work(10, 5 * US, lane=8, correlation=2), work(start, start + 5, correlation=1),
    )  # fmt: skip
    assert awaited(found[4]) == ((3, INFERRED, False) if waits else (None, None, False))


def test_work_without_length_delays_none() -> None:
    """Stream 8 ends at 40 us and at once at 50; work of stream 7 starts then, 50 us after its launch."""
    operations = (
        host(0, 5, correlation=1), host(5, 9, correlation=2), work(10, 40 * US, lane=8, correlation=2),
        work(50 * US, 50 * US, lane=8), work(50 * US, 50 * US, lane=7, correlation=1),
    )  # fmt: skip
    assert awaited(depend(*operations)[4]) == (2, INFERRED, False)
    alone = depend(
        host(0, 5, correlation=1), host(5, 9, correlation=2), work(10, 10, lane=8, correlation=2),
        work(50 * US, 50 * US, correlation=1),
    )  # fmt: skip
    assert [awaited(row) for row in alone] == [(None, None, False)] * 4


def test_on_a_cpu_ranges_belong_to_the_operator_that_started_them_and_the_host_waits_for_them() -> None:
    found = depend(
        host(0, 10, kind="issue"), work(12, 50, launch_ns=2), host(60, 70, kind="compute"),
        host(80, 90, kind="issue"), work(85, 86, launch_ns=5), work(95, 99),
        has_device=False,
    )  # fmt: skip
    # by the launch where it is known, else by the start
    assert [row["launcher"] for row in found] == [None, 0, None, None, 0, 3]
    assert awaited(found[2]) == (1, INFERRED, False)
    assert [row["latency_ns"] for row in found] == [None, 0, None, None, 0, 0]


def test_an_operator_that_runs_on_until_its_range_has_ended_waits_for_it() -> None:
    found = depend(host(0, 100, kind="issue"), work(5, 90), host(200, 210, kind="compute"), has_device=False)
    assert awaited(found[0]) == (1, SYNCHRONISATION, True)
    other = depend(
        host(0, 100, kind="compute"), work(5, 90), host(200, 210, kind="compute"), has_device=False
    )
    assert [awaited(row) for row in other] == [(None, None, False)] * 3


@pytest.mark.parametrize(("end", "waits"), [(50, True), (40, False), (60, True)])
def test_the_host_waits_for_a_range_of_another_operator_if_it_idles_longer_before_than_after(
    end: int, waits: bool
) -> None:
    # Host idle from 10 to 70; the range ends after 40, 30 or 50 of these 60 ns, and belongs to no operator.
    found = depend(host(0, 10, kind="compute"), work(5, end), host(70, 80, kind="compute"), has_device=False)
    assert awaited(found[2]) == ((1, INFERRED, False) if waits else (None, None, False))


def test_the_host_waits_for_a_send_only_if_nothing_ran_since_it_was_started() -> None:
    direct = depend(
        host(0, 10, kind="issue"), work(5, 20, name="gloo:send"), host(70, 80), has_device=False
    )  # fmt: skip
    assert awaited(direct[2]) == (1, INFERRED, False)
    later = depend(
        host(0, 10, kind="issue"), work(5, 55, name="gloo:send"), host(20, 30), host(60, 80), has_device=False
    )  # fmt: skip
    assert awaited(later[3]) == (None, None, False)


def test_the_host_waits_for_no_send_that_no_operator_started() -> None:
    found = depend(
        host(0, 10, kind="compute"), work(5, 20, name="gloo:send"), host(70, 80), has_device=False
    )  # fmt: skip
    assert awaited(found[2]) == (None, None, False)


def test_the_host_waits_for_a_range_on_its_own_thread_however_long_it_idles_after_it() -> None:
    ranges = {lane: work(5, 20, lane=lane) for lane in (1, 7)}
    for lane, waits in ((1, True), (7, False)):
        found = depend(host(0, 10, kind="compute"), ranges[lane], host(70, 80), has_device=False)
        assert awaited(found[2]) == ((1, INFERRED, False) if waits else (None, None, False))


def test_an_operator_that_ends_with_its_range_does_not_wait_for_it_and_the_next_does() -> None:
    found = depend(host(0, 90, kind="issue"), work(5, 90), host(200, 210), has_device=False)
    assert [awaited(row) for row in found] == [(None, None, False)] * 2 + [(1, INFERRED, False)]


@pytest.mark.parametrize(("end", "waits"), [(89, False), (90, True), (91, True)])
def test_only_an_operator_that_runs_until_its_range_has_ended_waits_inside(end: int, waits: bool) -> None:
    found = depend(
        host(0, 100, kind="compute"), host(50, end, kind="issue"), work(55, 90), has_device=False
    )  # fmt: skip
    assert awaited(found[1]) == ((2, SYNCHRONISATION, True) if waits else (None, None, False))


def test_nobody_waits_for_a_range_before_the_first_operation_or_after_the_last() -> None:
    found = depend(work(0, 5), host(10, 20), work(25, 30), has_device=False)
    assert [awaited(row) for row in found] == [(None, None, False)] * 3


def test_work_of_an_unknown_launch_is_awaited_and_a_launch_at_the_start_of_a_call_is_before_it() -> None:
    unknown = depend(host(0, 100, kind="wait"), work(30, 90))
    assert awaited(unknown[0]) == (1, SYNCHRONISATION, True)
    beside = depend(
        host(0, 100, kind="wait"), host(0, 5, lane=2, correlation=1), work(30, 90, correlation=1)
    )  # fmt: skip
    assert awaited(beside[0]) == (2, SYNCHRONISATION, True)


def test_a_call_does_not_wait_for_work_that_ends_when_it_starts() -> None:
    found = depend(work(30, 90), host(90, 100, kind="wait"))
    assert awaited(found[1]) == (None, None, False)
    ends_together = depend(work(30, 90), host(80, 90, kind="wait"))
    assert awaited(ends_together[1]) == (0, SYNCHRONISATION, True)


def test_of_several_other_streams_the_work_that_ended_last_is_awaited() -> None:
    found = depend(
        host(0, 1, correlation=1), host(2, 3, correlation=2), host(4, 5, correlation=3),
        work(10, 100, lane=8, correlation=1), work(11, 90, lane=9, correlation=2),
        work(20, 95, lane=9, correlation=3), host(60, 65, correlation=4), work(100, 110, correlation=4),
        waits=((50, 1),),
    )  # fmt: skip
    assert awaited(found[7]) == (3, STREAM_WAIT, False)
