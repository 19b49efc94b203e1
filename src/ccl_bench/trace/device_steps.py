"""Steps of a device in a recording of JAX: those that the program marked, else those that the device shows.

JAX returns from a call before the device has done its work. Where the ranges that mark the steps end before
the work that they started, they show how long it takes to ask for a step, not how long a step takes: then a
step is the time from its first work on the device to that of the next. Without marks each run of the program
that takes most of the device's time is a step, with the runs of others that ran as often.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import np
from ccl_bench.base.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccl_bench.trace.protobuf import Numbers

MARKED, ON_DEVICE, BY_PROGRAM = "marked", "on the device", "by program"
"""How the steps were found."""

_MAIN_SHARE = 0.5
"""Least share of the device's time that the programs must take whose runs are the steps."""


_Name = TypeVar("_Name")


class Mark(NamedTuple):
    """A step that the program marked: `jax.profiler.StepTraceAnnotation`."""

    name: str
    step: int
    start_ns: int
    end_ns: int
    thread: int


class Moment(NamedTuple):
    """A time on a thread of the host."""

    thread: int
    time_ns: int


class Ran(NamedTuple):
    """What a device ran, in columns: an entry for each time that it ran an instruction or kernel."""

    program: Numbers
    """Number of the program; of the kernel where that is of none."""
    start_ns: Numbers
    end_ns: Numbers
    run: Numbers
    """Run of the program, or launch of the kernel."""


class DeviceStep(NamedTuple):
    """One step."""

    name: str
    number: int
    start_ns: int
    end_ns: int

    @property
    def label(self) -> str:
        """The name of the range that stands for it among the annotations."""
        return f"{self.name}#step_num={self.number}#"


class ProgramRun(NamedTuple):
    """One run of a program on a device."""

    program: str
    start_ns: int
    end_ns: int

    def label(self, number: int) -> str:
        """The name of the range that stands for it among the annotations; `number` counts all runs."""
        return f"{self.program}#run={number}#"


class DeviceSteps(NamedTuple):
    """The steps of a device, and how they were found; empty if nothing shows them."""

    steps: list[DeviceStep]
    source: str
    program: str = ""
    """The program whose runs they are."""
    left_out: int = 0
    """Marked steps of which the device shows no work, or not all."""


def find_steps(
    marks: Sequence[Mark], dispatches: Mapping[int, Moment], work: Ran, on_device: DeviceSteps
) -> DeviceSteps:
    """Return the steps of a device.

    `dispatches` maps runs of `work` to when and where the program asked for them; `on_device` are the steps
    that the device itself shows.
    """
    main = _main_marks(marks, {moment.thread for moment in dispatches.values()})
    if not main:
        return on_device
    spans = _work_of(main, dispatches, work)
    busy = [(mark, span) for mark, span in zip(main, spans, strict=True) if span]
    if not busy:
        # Nothing shows which of the marks asked for the work: half of it must begin within them.
        begins = np.array([mark.start_ns for mark in main], dtype=np.int64)
        ends = np.array([mark.end_ns for mark in main], dtype=np.int64)
        place = np.searchsorted(begins, work.start_ns, side="right") - 1
        is_inside = (place >= 0) & (work.start_ns < ends[place])
        if 2 * int(np.count_nonzero(is_inside)) < is_inside.size:
            return on_device
    busy_end = main.index(busy[-1][0]) + 1 if busy else 0
    late = [m for m, span in busy if span.end_ns - m.end_ns > _LATE * (m.end_ns - m.start_ns)]
    is_ahead = len(late) + len(main) - busy_end > _LATE * len(main)
    is_lost = False
    if len(busy) < busy_end:  # a step without work, and work that nothing shows which step asked for
        later = np.unique(work.run[work.start_ns >= busy[0][1].begin_ns])
        is_lost = not dispatches.keys() >= {*later.tolist()}
    if is_lost and len(late) > _LATE * len(busy):
        return on_device
    if not busy or not is_ahead or is_lost:
        return DeviceSteps([DeviceStep(m.name, m.step, m.start_ns, m.end_ns) for m in main], MARKED)
    # A step ends where the next begins, or with its own work where the program asked for other work between.
    request_times = sorted(moment.time_ns for moment in dispatches.values())
    step_ends = []
    for (mark, span), (after, following) in pairwise(busy):
        at = bisect.bisect_left(request_times, mark.end_ns)
        is_between = at < len(request_times) and request_times[at] < after.start_ns
        step_ends.append(min(span.end_ns, following.begin_ns) if is_between else following.begin_ns)
    step_ends.append(busy[-1][1].end_ns)
    steps = [
        DeviceStep(m.name, m.step, span.begin_ns, end) for (m, span), end in zip(busy, step_ends, strict=True)
    ]
    # The recording ended within the last step if that only begins as others do, and repeats none. One in
    # which the program did not evaluate, as it did in the one before, is whole.
    *earlier, last = [span for _, span in busy]
    is_cut = any(last.begins(span) for span in earlier) and not any(last.repeats(span) for span in earlier)
    if is_cut or (not earlier and busy_end < len(main)):
        steps.pop()
    return DeviceSteps(steps, ON_DEVICE, left_out=len(main) - len(steps)) if steps else on_device


_LATE = 0.1
"""Share of the ranges after which work may go on, and of a range by which it may, if these are the steps."""


class _Span(NamedTuple):
    """The time in which the device worked on a step, and its runs for it, in the order of the requests."""

    begin_ns: int
    end_ns: int
    ran: Numbers
    """The program of each run, or the kernel."""
    lengths: Numbers
    """The instructions of each run."""

    def begins(self, other: _Span) -> bool:
        """Whether this is the beginning of the runs of another step, and not all of them."""
        if not np.array_equal(self.ran, other.ran[: self.ran.size]):
            return False
        place = self.ran.size - 1
        return self.ran.size < other.ran.size or bool(self.lengths[place] < other.lengths[place])

    def repeats(self, other: _Span) -> bool:
        """Whether the device ran the same in both, to the end."""
        return np.array_equal(self.ran, other.ran) and not self.begins(other)


def _main_marks(marks: Sequence[Mark], threads: set[int]) -> list[Mark]:
    """Return the marks of the name that covers most time, in order.

    Only those on the threads that asked for work count, if any is: others mark other things.
    """
    marks = [mark for mark in marks if mark.thread in threads] or marks
    covered_ns: dict[str, int] = defaultdict(int)
    for mark in marks:
        covered_ns[mark.name] += mark.end_ns - mark.start_ns
    main = max(covered_ns, key=lambda name: covered_ns[name], default=None)
    return sorted((mark for mark in marks if mark.name == main), key=lambda mark: mark.start_ns)


def _work_of(marks: Sequence[Mark], dispatches: Mapping[int, Moment], work: Ran) -> list[_Span | None]:
    """Return the span of the device's work for each step; None for a step without work."""
    runs, places = np.unique(work.run, return_inverse=True)
    moments = [dispatches.get(run) for run in runs.tolist()]
    times = np.array([moment.time_ns if moment else -1 for moment in moments], dtype=np.int64)
    begins = np.array([mark.start_ns for mark in marks], dtype=np.int64)
    ends = np.array([mark.end_ns for mark in marks], dtype=np.int64)
    place = np.searchsorted(begins, times, side="right") - 1
    step_of_row = np.where((times >= 0) & (place >= 0) & (times < ends[place]), place, -1)[places]
    spans: list[_Span | None] = []
    for number in range(len(marks)):
        rows = np.flatnonzero(step_of_row == number)
        if not rows.size:
            spans.append(None)
            continue
        run_places, first, lengths = np.unique(places[rows], return_index=True, return_counts=True)
        order = np.argsort(times[run_places], kind="stable")
        begin, end = work.start_ns[rows], work.end_ns[rows]
        spans.append(
            _Span(int(begin.min()), int(end.max()), work.program[rows[first[order]]], lengths[order])
        )
    return spans


def runs_as_steps(programs: Sequence[str], start_ns: Numbers, end_ns: Numbers) -> DeviceSteps:
    """Return the runs of the program that begins a step, each until the next one."""
    lengths = end_ns - start_ns
    names = np.array(programs, dtype=object)
    totals = {name: float(lengths[names == name].sum()) for name in dict.fromkeys(programs)}
    begins = {name: start_ns[names == name] for name in totals}
    step_programs = runs_together(totals, begins)
    if not step_programs:
        return DeviceSteps([], "")
    last_ns = int(end_ns[np.isin(names, step_programs)].max())
    return tile_steps(step_programs[0].partition("(")[0], begins[step_programs[0]], last_ns)


def runs_together(totals: Mapping[_Name, float], begins: Mapping[_Name, Numbers]) -> list[_Name]:
    """Return the programs that make up a step, in order of time; none if they take little of the time.

    These are the program that takes most time, and all that ran as often; `begins` are when each ran.
    """
    main = max(begins, key=lambda name: totals[name], default=None)
    if main is None or not begins[main].size:
        return []
    step_programs = [name for name, times in begins.items() if times.size == begins[main].size]
    if sum(totals[name] for name in step_programs) < _MAIN_SHARE * sum(totals.values()):
        return []
    return sorted(step_programs, key=lambda name: int(begins[name][0]))


def tile_steps(program: str, begins: Numbers, last_ns: int) -> DeviceSteps:
    """Return the windows from each time to the next one; none for a single one, which shows no repetition."""
    if begins.size < 2:
        return DeviceSteps([], "")
    starts = begins.tolist()
    windows = enumerate(pairwise([*starts, last_ns]))
    return DeviceSteps(
        [DeviceStep(program, number, *window) for number, window in windows], BY_PROGRAM, program
    )


def numbered_steps(names: Sequence[str], starts: Sequence[int], ends: Sequence[int]) -> DeviceSteps:
    """Return the steps that a device shows itself, in a line of ranges that are named by their numbers."""
    # A number of 18 digits may not fit a column: then the place counts.
    numbers = [int(n) if n.isdecimal() and len(n) < 18 else place for place, n in enumerate(names)]
    rows = zip(numbers, starts, ends, strict=True)
    return DeviceSteps([DeviceStep("step", *row) for row in sorted(rows, key=lambda row: row[1])], ON_DEVICE)


def is_of_program(name: str) -> bool:
    """Whether a range of the host is the program's own; the runtime's have names of C++ or of its calls."""
    return "::" not in name and "=>" not in name


DETECTED = frozenset({"steps-on-device", "steps-by-program"})
"""Codes of the findings about steps that nobody chose."""


def step_findings(steps: DeviceSteps, file: str) -> Iterator[Finding]:
    """Yield the findings about the way in which the steps were found."""
    if steps.source == ON_DEVICE:
        message = (
            "the program does not wait for the device within its steps: a step lasts from its first work "
            "on the device to that of the next step"
        )
        if steps.left_out:
            steps_left = counted(steps.left_out, "marked step")
            message += f"; {steps_left} without complete work in the recording left out"
        yield Finding("steps-on-device", "note", message, file, touches=("steps",))
    if steps.source == BY_PROGRAM:
        runs = counted(len(steps.steps), "run")
        message = f"nothing marks a step: each of the {runs} of the program {steps.program} counts as a step"
        yield Finding(
            "steps-by-program", "warning", message, file, count=len(steps.steps), touches=("steps",)
        )
