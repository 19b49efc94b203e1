"""What hosts do, and why devices are idle, against a timeline that is painted unit by unit."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from frames import derive, table
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.execution.idle import host_activity, idle_causes

if TYPE_CHECKING:
    import polars as pl

UNIT = 250_000
"""In ns, so that the threshold of a pause, 1 ms, is four units."""

STALLS = {
    "gc.collect": "garbage collection",
    "enumerate(DataLoader)#_Iter.__next__": "data loading",
    "torch.compile": "compilation",
}
LAUNCH, COPY, WAIT, LOAD, OTHER = (
    "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cuLibraryLoadData", "cudaEventRecord",
)  # fmt: skip
BEFORE = -1
"""When what was launched before the recording was launched."""


class Span(NamedTuple):
    """A call, range, operator, step or piece of work, in units."""

    start: int
    end: int
    name: str
    thread: int = 1
    number: int = 0
    """Of a call and the work that it launched; 0 without work."""

    def holds(self, instant: int) -> bool:
        return self.start <= instant < self.end


class Made(NamedTuple):
    """What one trace holds, in units."""

    calls: list[Span]
    ranges: list[Span]
    operators: list[Span]
    steps: list[Span]
    work: list[Span]

    def rows(self, spans: list[Span], **more: Any) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "start_ns": each.start * UNIT, "end_ns": each.end * UNIT, "process": 1}
            | {"thread": each.thread, "correlation": each.number, "on_device": False}
            | more
            for each in spans
        ]

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return steps, work of the device, activity of the host, and causes of idle time."""
        of_copies = {each.number for each in self.calls if each.name == COPY}
        copies = [each for each in self.work if each.number in of_copies]
        kernels = [each for each in self.work if each.number not in of_copies]
        raw = {
            "annotations": table("annotations", self.rows([*self.steps, *self.ranges])),
            "cpu_ops": table("cpu_ops", self.rows(self.operators)),
            "launches": table("launches", self.rows(self.calls)),
            "kernels": table("kernels", self.rows(kernels, device=0, stream=7)),
            "memcpy": table("memcpy", self.rows(copies, kind="HtoD", stream=7)),
        }
        steps, work = derive("steps", **raw), derive("device_work", **raw)
        activity = host_activity(raw["launches"], raw["cpu_ops"], raw["annotations"], steps, work)
        return steps, work, activity, idle_causes(steps, work, activity)


Cause = tuple[str, str | None]
LAUNCHING: Cause = ("launching", None)
LONG = 4
"""Units of the longest time without a call that is no pause."""


def painted_activity(made: Made, steps: pl.DataFrame) -> dict[int, Cause]:
    """Return the cause of each unit of the host's time."""
    launched = {each.number for each in made.work}
    threads = {call.thread for call in made.calls if call.number in launched}
    calls = [call for call in made.calls if call.thread in threads]
    if not calls:
        return {}
    step_starts, step_ends = ([ns // UNIT for ns in steps[bound]] for bound in ("start_ns", "end_ns"))
    begin = min([call.start for call in calls] + step_starts[:1])
    end = max([call.end for call in calls] + step_ends[-1:])
    firsts = _first_launches(made)
    spans = {(start // UNIT, end // UNIT) for start, end in steps.select("start_ns", "end_ns").iter_rows()}
    ranges = [each for each in made.ranges if (each.start, each.end) not in spans]
    around = [("named range", each) for each in ranges if each.thread in threads]
    around += [("operator", each) for each in made.operators if each.thread in threads]
    painted: dict[int, Cause] = {}
    for instant in range(begin, end):
        holding = [call for call in calls if call.holds(instant)]
        apart = [(call, cause) for call in holding if (cause := _cause_of_call(call, firsts))]
        if apart:
            call, cause = min(apart, key=lambda each: each[0].start)
            painted[instant] = (cause, call.name)
        elif holding:
            painted[instant] = LAUNCHING
        else:
            since = max([call.end for call in calls if call.start <= instant], default=begin)
            until = min([call.start for call in calls if call.start > instant], default=end)
            pause = Span(since, until, "")
            painted[instant] = LAUNCHING if until - since <= LONG else _cause_of_pause(pause, around)
    return painted


def _first_launches(made: Made) -> set[int]:
    """Return when each kernel was launched for the first time, if no other launch of it takes long.

    Copies have no name. A kernel that also ran for an unknown launch may have been loaded by that.
    """
    by_number = {call.number: call for call in made.calls if call.number}
    launched: dict[str, list[Span | None]] = {}
    for work in made.work:
        call = by_number.get(work.number)
        if not (call and call.name == COPY):
            launched.setdefault(work.name, []).append(call)
    firsts = set()
    for calls in launched.values():
        known = [call for call in calls if call is not None]
        long = {call.start for call in known if call.end - call.start > LONG}
        if len(known) == len(calls) and len(long) == 1:
            firsts.add(min(call.start for call in known))
    return firsts


def _cause_of_call(call: Span, firsts: set[int]) -> str | None:
    is_long = call.end - call.start > LONG
    if call.name == WAIT or (is_long and call.name == COPY):
        return "blocking call"
    if is_long and (call.name == LOAD or (call.name == LAUNCH and call.start in firsts)):
        return "first use"
    return "long call" if is_long else None


def _cause_of_pause(pause: Span, around: list[tuple[str, Span]]) -> Cause:
    """Return the kind and name of what covers more than half of a pause: a known stall, else the shortest."""
    length = pause.end - pause.start
    later_first = around[::-1]
    inner_first = sorted(later_first, key=lambda each: (each[1].thread, each[1].end - each[1].start))
    covering = [
        (kind, each)
        for kind, each in inner_first
        if 2 * (min(pause.end, each.end) - max(pause.start, each.start)) > length
    ]
    stalled = [(STALLS[each.name], each.name) for _, each in covering if each.name in STALLS]
    if stalled:
        return stalled[0]
    least = [(each.end - each.start, kind, each.name) for kind, each in covering]
    return min(least)[1:] if least else ("unnamed pause", None)


def painted_idleness(
    made: Made, steps: pl.DataFrame, activity: dict[int, Cause]
) -> dict[tuple[int, int], Cause]:
    """Return the cause of each unit in the window of a step in which nothing runs, by step and unit."""
    if not made.work:
        return {}
    windows = [
        (step, start // UNIT, end // UNIT)
        for step, start, end in steps.select("step", "device_start_ns", "device_end_ns").iter_rows()
    ]
    returns = {call.number: call.end for call in made.calls if call.number}
    first = min((call.number for call in made.calls if call.number), default=0)
    lasting = [each for each in made.work if each.end > each.start]
    beyond: Cause = ("ends of the recording" if activity else "no host recorded", None)
    painted: dict[tuple[int, int], Cause] = {}
    for step, start, end in windows:
        for instant in range(start, end):
            if any(each.holds(instant) for each in lasting):
                continue
            since = max([each.end for each in lasting if each.end <= instant], default=windows[0][1])
            until = min([each.start for each in lasting if each.start > instant], default=windows[-1][2])
            ending = [each for each in made.work if each.start == until]
            launched = [returns.get(each.number, BEFORE if each.number < first else None) for each in ending]
            at = min([each for each in launched if each is not None], default=None)
            if at is None or instant < at:
                painted[step, instant] = activity.get(instant, beyond)
            else:
                is_soon = until - max(since, at) <= LONG
                painted[step, instant] = ("between queued work" if is_soon else "unknown", None)
    return painted


def units(found: pl.DataFrame, *by: str) -> dict[Any, Cause]:
    """Return the cause of each unit of some stretches, of which no two may share one."""
    painted: dict[Any, Cause] = {}
    for *key, start, end, cause, name in found.select(*by, "start_ns", "end_ns", "cause", "name").iter_rows():
        assert start < end
        assert start % UNIT == end % UNIT == 0
        for instant in range(start // UNIT, end // UNIT):
            place = (*key, instant) if key else instant
            assert place not in painted
            painted[place] = (cause, name)
    return painted


@st.composite
def calls_of_threads(draw: st.DrawFn) -> tuple[list[Span], list[Span]]:
    """Return calls, one after the other on each thread, and the work of those that launch some."""
    calls, work, number = [], [], 5
    for thread in range(1, 1 + draw(st.integers(0, 3))):
        names = (WAIT, OTHER) if thread == 3 else (LAUNCH, LAUNCH, COPY, WAIT, LOAD, OTHER)
        at = 0
        for name in draw(st.lists(st.sampled_from(names), max_size=5)):
            at += draw(st.integers(0, 9))
            length = draw(st.sampled_from([0, 1, 1, 2, 4, 5, 8]))
            number += 1
            calls.append(Span(at, at + length, name, thread, number))
            if name in (LAUNCH, COPY):
                start = at + draw(st.integers(0, 14))
                took = draw(st.sampled_from([0, 1, 3, 6]))
                work.append(Span(start, start + took, draw(st.sampled_from("ab")), 7, number))
            at += length
    launched = {each.number for each in work}
    calls = [call if call.number in launched else call._replace(number=0) for call in calls]
    starts = draw(st.lists(st.integers(0, 12), max_size=2))
    queued = [Span(start, start + 2, "a", 7, 1 + place) for place, start in enumerate(starts)]
    return calls, sorted(work + queued)


@st.composite
def nested_spans(draw: st.DrawFn, names: tuple[str, ...]) -> list[Span]:
    """Return ranges on threads 1 to 3, those of one thread apart or inside each other."""
    found = []
    for thread in (1, 2, 3):
        bounds = sorted(draw(st.lists(st.integers(0, 50), max_size=6)))
        for start, end in zip(bounds[::2], bounds[1::2], strict=False):
            found.append(Span(start, end, draw(st.sampled_from(names)), thread))
            if end - start > 2 and draw(st.booleans()):
                inner = Span(start + 1, end - draw(st.integers(0, 1)), draw(st.sampled_from(names)), thread)
                found.append(inner)
    return found


@st.composite
def traces(draw: st.DrawFn) -> Made:
    calls, work = draw(calls_of_threads())
    bounds = sorted(draw(st.sets(st.integers(0, 60), max_size=4)))
    steps = [Span(start, end, f"ProfilerStep#{place}") for place, (start, end) in enumerate(pairwise(bounds))]
    ranges = draw(nested_spans(("evaluation", "logging", "gc.collect", *STALLS)))
    return Made(calls, ranges, [], steps, work)


@given(made=traces())
def test_each_unit_of_a_host_and_of_an_idle_device_has_the_cause_that_the_rules_name(made: Made) -> None:
    steps, _, activity, causes = made.tables()
    of_host = painted_activity(made, steps)
    assert units(activity) == of_host
    assert units(causes, "step") == painted_idleness(made, steps, of_host)


@given(made=traces(), operators=nested_spans(("aten::item", "aten::mm", "torch.compile")))
def test_operators_name_pauses_as_ranges_do(made: Made, operators: list[Span]) -> None:
    only_operators = made._replace(ranges=[], operators=operators)
    steps, _, activity, _ = only_operators.tables()
    assert units(activity) == painted_activity(only_operators, steps)


@given(made=traces())
def test_idle_time_of_a_step_is_its_window_without_the_union_of_work(made: Made) -> None:
    steps, work, _, causes = made.tables()
    busy = {at for each in made.work for at in range(each.start, each.end)}
    counted = Counter(step for step, _ in units(causes, "step"))
    for step, start, end in steps.select("step", "device_start_ns", "device_end_ns").iter_rows():
        window = set(range(start // UNIT, end // UNIT))
        assert counted[step] == (len(window - busy) if work.height else 0)


MS = 1_000_000


def call(start: int, end: int, number: int = 0, name: str = LAUNCH, thread: int = 1) -> dict[str, Any]:
    row = {"name": name, "start_ns": start, "end_ns": end, "process": 1, "thread": thread}
    return row | {"correlation": number}


def kernel(start: int, end: int, number: int, name: str = "gemm") -> dict[str, Any]:
    row = {"name": name, "start_ns": start, "end_ns": end, "correlation": number}
    return row | {"device": 0, "stream": 7}


def named(start: int, end: int, name: str, thread: int = 1) -> dict[str, Any]:
    row = {"name": name, "start_ns": start, "end_ns": end, "process": 1, "thread": thread}
    return row | {"on_device": False}


def derived(wanted: str, **raw: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return bounds, cause and name of each stretch, of raw tables given as rows."""
    found = derive(wanted, **{name: table(name, rows) for name, rows in raw.items()})
    return found.select("start_ns", "end_ns", "cause", "name").rows()


def two_launches(apart_ns: int) -> dict[str, list[dict[str, Any]]]:
    """Return two launches of 10 ns, the second as much later, each with work of 10 ns that starts at once."""
    second = 10 + apart_ns
    return {
        "launches": [call(0, 10, 1), call(second, second + 10, 2)],
        "kernels": [kernel(10, 20, 1), kernel(second + 10, second + 20, 2)],
    }


@pytest.mark.parametrize(("apart_ns", "cause"), [(MS, "launching"), (MS + 1, "unnamed pause")])
def test_a_host_pauses_after_more_than_1_ms_without_a_call(apart_ns: int, cause: str) -> None:
    causes = {
        row[2] for row in derived("host_activity", **two_launches(apart_ns)) if row[:2] == (10, 10 + apart_ns)
    }
    assert causes == {cause}
    idle = derived("idle_causes", **two_launches(apart_ns))
    assert (20, 10 + apart_ns, cause, None) in idle


@pytest.mark.parametrize(("took", "cause"), [(MS, "launching"), (MS + 1, "long call")])
@pytest.mark.parametrize(
    ("name", "long"),
    [(LAUNCH, "long call"), (OTHER, "long call"), (COPY, "blocking call"), (LOAD, "first use")],
)
def test_a_call_is_apart_after_more_than_1_ms(took: int, cause: str, name: str, long: str) -> None:
    calls = [call(0, 10, 1), call(20, 20 + took, 2, name)]
    found = derived("host_activity", launches=calls, kernels=[kernel(10, 20, 1), kernel(30, 40, 2)])
    shown = next((*row[2:],) for row in found if row[0] <= 20 < row[1])
    assert shown == (("launching", None) if cause == "launching" else (long, name))


def test_a_call_that_waits_is_apart_however_short_it_is() -> None:
    calls = [call(0, 10, 1), call(10, 15, 0, WAIT), call(15, 20, 2)]
    found = derived("host_activity", launches=calls, kernels=[kernel(10, 12, 1), kernel(18, 25, 2)])
    assert (10, 15, "blocking call", WAIT) in found


@pytest.mark.parametrize(("name", "cause"), [("gemm", "long call"), ("other", "first use")])
def test_the_first_launch_of_a_kernel_loads_it(name: str, cause: str) -> None:
    calls = [call(0, 10, 1), call(20, 21 + MS, 2)]
    found = derived("host_activity", launches=calls, kernels=[kernel(10, 20, 1), kernel(30, 40, 2, name)])
    assert (20, 21 + MS, cause, LAUNCH) in found


def test_a_kernel_that_was_launched_before_the_recording_is_loaded() -> None:
    calls = [call(0, 2 * MS, 5)]
    kernels = [kernel(0, 5, 2, "gemm"), kernel(3 * MS, 4 * MS, 5, "gemm")]
    assert (0, 2 * MS, "long call", LAUNCH) in derived("host_activity", launches=calls, kernels=kernels)


def test_a_first_launch_does_not_load_the_kernel_if_a_later_one_is_as_long() -> None:
    second = 3 * MS
    kernels = [kernel(5, 10, 1), kernel(second + 5, second + 10, 2)]
    for took, cause in ((MS, "first use"), (MS + 1, "long call")):
        calls = [call(0, 2 * MS, 1), call(second, second + took, 2)]
        assert (0, 2 * MS, cause, LAUNCH) in derived("host_activity", launches=calls, kernels=kernels)


def test_a_host_without_chosen_steps_is_active_from_its_first_call_to_its_last() -> None:
    raw = {name: table(name, rows) for name, rows in two_launches(2 * MS).items()}
    empty = {name: table(name, []) for name in ("cpu_ops", "annotations")}
    steps, work = derive("steps", **raw).clear(), derive("device_work", **raw)
    activity = host_activity(raw["launches"], **empty, steps=steps, device_work=work)
    assert activity.select("start_ns", "end_ns", "cause").rows() == [
        (0, 10, "launching"),
        (10, 10 + 2 * MS, "unnamed pause"),
        (10 + 2 * MS, 20 + 2 * MS, "launching"),
    ]
    assert idle_causes(steps, work, activity).is_empty()


@pytest.mark.parametrize(("queued_ns", "cause"), [(MS, "between queued work"), (MS + 1, "unknown")])
def test_work_that_was_launched_starts_within_1_ms_or_waits_for_something_unknown(
    queued_ns: int, cause: str
) -> None:
    """The first kernel ends at 30 ns, after the second one was launched."""
    start = 30 + queued_ns
    found = derived(
        "idle_causes",
        launches=[call(0, 10, 1), call(10, 20, 2)],
        kernels=[kernel(10, 30, 1), kernel(start, start + 5, 2)],
    )
    assert (30, start, cause, None) in found


def test_a_gap_is_the_host_s_until_the_launch_of_what_ends_it_returns() -> None:
    """The device is idle from 20 to 60 ns; the launch returns at 40."""
    found = derived(
        "idle_causes",
        launches=[call(0, 10, 1), call(30, 40, 2)],
        kernels=[kernel(5, 20, 1), kernel(60, 70, 2)],
        annotations=[named(0, 70, "ProfilerStep#1")],
    )
    assert found == [
        (0, 5, "launching", None), (20, 30, "launching", None), (30, 40, "launching", None),
        (40, 60, "between queued work", None),
    ]  # fmt: skip


def test_gaps_between_work_of_before_the_recording_are_not_the_host_s() -> None:
    """Numbers below 5, that of the first call, were launched before the recording."""
    kernels = [kernel(0, 10, 3), kernel(30, 40, 4), kernel(60, 70, 5)]
    found = derived("idle_causes", launches=[call(20, 45, 5)], kernels=kernels)
    assert found[0] == (10, 30, "between queued work", None)
    assert (45, 60, "between queued work", None) in found


def test_without_a_call_of_a_host_nothing_is_known_of_it() -> None:
    """Idle for 72 of 100 ns."""
    kernels = [kernel(0, 10, 1), kernel(40, 58, 2), kernel(100, 100, 3)]
    assert derived("host_activity", kernels=kernels) == []
    found = derived("idle_causes", kernels=kernels)
    assert found == [(10, 40, "no host recorded", None), (58, 100, "no host recorded", None)]
    assert sum(end - start for start, end, *_ in found) == 72


def test_after_the_host_s_last_call_and_step_nothing_is_known_of_it() -> None:
    """The step ends at 100 ns on the host and at 450 on the device; no launch of the work at 300."""
    found = derived(
        "idle_causes",
        launches=[call(0, 10, 1), call(90, 95, 2)],
        kernels=[kernel(10, 150, 1), kernel(300, 310, 99), kernel(400, 450, 2)],
        annotations=[named(0, 100, "ProfilerStep#1")],
    )
    assert found == [
        (0, 10, "launching", None),
        (150, 300, "ends of the recording", None),
        (310, 400, "between queued work", None),
    ]


@pytest.mark.parametrize(("launches", "counts"), [(99, True), (100, False)])
def test_a_thread_that_launches_less_than_1_percent_of_the_work_is_no_host(
    launches: int, counts: bool
) -> None:
    """The loader's thread copies once, 2 ms after the last launch."""
    calls = [call(10 * place, 10 * place + 5, 1 + place) for place in range(launches)]
    last = calls[-1]["end_ns"]
    loader = call(last + 2 * MS, last + 2 * MS + 5, 1000, COPY, thread=2)
    kernels = [kernel(each["start_ns"] + 5, each["end_ns"] + 5, each["correlation"]) for each in calls]
    copied = {"start_ns": last + 2 * MS, "end_ns": last + 2 * MS + 9, "correlation": 1000, "kind": "HtoD"}
    raw = {"launches": [*calls, loader], "kernels": kernels, "memcpy": [copied | {"stream": 8}]}
    found = derived("host_activity", **raw)
    ends = [row[1] for row in found if row[2] != "unnamed pause"]
    assert (max(ends) > last) == counts


def test_threads_that_launch_are_one_host() -> None:
    """Each thread alone pauses for 1.2 ms; together they call every 0.6 ms."""
    times = [(place * 600_000, 1 + place % 2) for place in range(6)]
    calls = [call(at, at + 10, 1 + place, thread=thread) for place, (at, thread) in enumerate(times)]
    kernels = [kernel(at + 10, at + 20, 1 + place) for place, (at, _) in enumerate(times)]
    assert {row[2] for row in derived("host_activity", launches=calls, kernels=kernels)} == {"launching"}


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "cause"),
    [
        (10, 2 * MS + 11, "named range"),
        (10, 2 * MS + 10, "unnamed pause"),
        (2 * MS + 10, 9 * MS, "unnamed pause"),
        (2 * MS + 9, 9 * MS, "named range"),
    ],
)
def test_a_range_names_a_pause_of_which_it_covers_more_than_half(
    start_ns: int, end_ns: int, cause: str
) -> None:
    """The pause is from 10 to 4,000,010 ns."""
    raw = two_launches(4 * MS) | {"annotations": [named(start_ns, end_ns, "evaluation")]}
    (found,) = (row[2] for row in derived("host_activity", **raw) if row[0] == 10)
    assert found == cause


def test_of_work_that_starts_together_the_first_launch_ends_the_host_s_part() -> None:
    """Two kernels start at 90 ns on two streams, launched until 40 and 60."""
    kernels = [kernel(10, 20, 1), kernel(90, 95, 2), kernel(90, 99, 3) | {"stream": 8}]
    calls = [call(0, 10, 1), call(30, 40, 2), call(50, 60, 3)]
    found = derived("idle_causes", launches=calls, kernels=kernels)
    assert found[-1] == (40, 90, "between queued work", None)


def test_hosts_whose_calls_take_no_time_are_hosts() -> None:
    raw = two_launches(2 * MS)
    raw["launches"] = [row | {"end_ns": row["start_ns"]} for row in raw["launches"]]
    assert derived("host_activity", **raw)[0] == (0, 2 * MS + 10, "unnamed pause", None)
    raw["launches"].append(call(MS, MS, 0, OTHER))
    found = derived("host_activity", **raw)
    assert [(row[0], row[1]) for row in found][:2] == [(0, MS), (MS, 2 * MS + 10)]
    assert [row[2] for row in found][:2] == ["launching", "unnamed pause"]
