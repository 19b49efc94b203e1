"""Steps of a device in a recording of JAX: those that the program marked, else those that the device shows.

JAX returns from a call before the device has done its work. Where the ranges that mark the steps end before
the work that they started, they show how long it takes to ask for a step, not how long a step takes: then a
step is the time from its first work on the device to that of the next. Without marks each run of the program
that takes most of the device's time is a step, with the runs of others that ran as often.
"""

from __future__ import annotations

import bisect
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from ccl_bench.base.findings import Finding
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


class Step(NamedTuple):
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


class Steps(NamedTuple):
    """The steps of a device, and how they were found; empty if nothing shows them."""

    steps: list[Step]
    source: str
    program: str = ""
    """The program whose runs they are."""
    left_out: int = 0
    """Marked steps of which the device shows no work, or not all."""


def find_steps(marks: Sequence[Mark], dispatches: Mapping[int, Moment], work: Ran, on_device: Steps) -> Steps:
    """Return the steps of a device.

    `dispatches` maps runs of `work` to when and where the program asked for them; `on_device` are the steps
    that the device itself shows.
    """
    main = _of_one_name(_of_threads(marks, {moment.thread for moment in dispatches.values()}))
    if not main:
        return on_device
    spans = _work_of(main, dispatches, work)
    busy = [(mark, span) for mark, span in zip(main, spans, strict=True) if span]
    if not busy and not _holds_work(main, work):
        return on_device
    busy_end = main.index(busy[-1][0]) + 1 if busy else 0
    late = [m for m, span in busy if span.end_ns - m.end_ns > _LATE * (m.end_ns - m.start_ns)]
    is_ahead = len(late) + len(main) - busy_end > _LATE * len(main)
    is_lost = len(busy) < busy_end and _has_unasked(work, dispatches, busy[0][1].begin_ns)
    if is_lost and len(late) > _LATE * len(busy):
        return on_device
    if not busy or not is_ahead or is_lost:
        return Steps([Step(m.name, m.step, m.start_ns, m.end_ns) for m in main], MARKED)
    ends = [*_ends_before_next(busy, dispatches), busy[-1][1].end_ns]
    steps = [Step(m.name, m.step, span.begin_ns, end) for (m, span), end in zip(busy, ends, strict=True)]
    *earlier, last = [span for _, span in busy]
    if _is_cut(last, earlier) or (not earlier and busy_end < len(main)):
        steps.pop()
    return Steps(steps, ON_DEVICE, left_out=len(main) - len(steps)) if steps else on_device


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


def _ends_before_next(busy: Sequence[tuple[Mark, _Span]], dispatches: Mapping[int, Moment]) -> Iterator[int]:
    """Yield the end of each step but the last: the next begin, or the end of its own work before others."""
    request_times = sorted(moment.time_ns for moment in dispatches.values())
    for (mark, span), (after, following) in pairwise(busy):
        place = bisect.bisect_left(request_times, mark.end_ns)
        is_between = place < len(request_times) and request_times[place] < after.start_ns
        yield min(span.end_ns, following.begin_ns) if is_between else following.begin_ns


def _holds_work(marks: Sequence[Mark], work: Ran) -> bool:
    """Whether half of the work begins within the marks, where nothing shows which of them asked for it."""
    begins = np.array([mark.start_ns for mark in marks], dtype=np.int64)
    ends = np.array([mark.end_ns for mark in marks], dtype=np.int64)
    place = np.searchsorted(begins, work.start_ns, side="right") - 1
    is_inside = (place >= 0) & (work.start_ns < ends[place])
    return 2 * int(np.count_nonzero(is_inside)) >= is_inside.size


def _is_cut(last: _Span, earlier: Sequence[_Span]) -> bool:
    """Whether the recording ended within the last step: it only begins as others do, and repeats none.

    A step in which the program did not evaluate, as it did in the one before, is whole.
    """
    return any(last.begins(span) for span in earlier) and not any(last.repeats(span) for span in earlier)


def _has_unasked(work: Ran, dispatches: Mapping[int, Moment], since_ns: int) -> bool:
    """Whether the device ran work since then of which nothing shows which step asked for it."""
    later = np.unique(work.run[work.start_ns >= since_ns])
    return not dispatches.keys() >= {*later.tolist()}


def _of_threads(marks: Sequence[Mark], threads: set[int]) -> list[Mark]:
    """Return the marks on the threads that asked for work; all where none is: others mark other things."""
    return [mark for mark in marks if mark.thread in threads] or [*marks]


def _of_one_name(marks: Sequence[Mark]) -> list[Mark]:
    """Return the marks of the name that covers most time, in order."""
    covered_ns: dict[str, int] = {}
    for mark in marks:
        covered_ns[mark.name] = covered_ns.get(mark.name, 0) + mark.end_ns - mark.start_ns
    if not covered_ns:
        return []
    main = max(covered_ns, key=lambda name: covered_ns[name])
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


def runs_as_steps(programs: Sequence[str], start_ns: Numbers, end_ns: Numbers) -> Steps:
    """Return the runs of the program that begins a step, each until the next one."""
    lengths = end_ns - start_ns
    names = np.array(programs, dtype=object)
    totals = {name: float(lengths[names == name].sum()) for name in dict.fromkeys(programs)}
    begins = {name: start_ns[names == name] for name in totals}
    step_programs = runs_together(totals, begins)
    if not step_programs:
        return Steps([], "")
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


def tile_steps(program: str, begins: Numbers, last_ns: int) -> Steps:
    """Return the windows from each time to the next one; none for a single one."""
    if begins.size < _FEWEST:
        return Steps([], "")
    starts = begins.tolist()
    ends = [*starts[1:], last_ns]
    windows = enumerate(zip(starts, ends, strict=True))
    return Steps([Step(program, number, *window) for number, window in windows], BY_PROGRAM, program)


_FEWEST = 2
"""Runs of a program that show that it is run step by step."""


def numbered_steps(names: Sequence[str], starts: Sequence[int], ends: Sequence[int]) -> Steps:
    """Return the steps that a device shows itself, in a line of ranges that are named by their numbers."""
    numbers = [int(n) if n.isdecimal() and len(n) < _DIGITS else k for k, n in enumerate(names)]
    rows = zip(numbers, starts, ends, strict=True)
    return Steps([Step("step", *row) for row in sorted(rows, key=lambda row: row[1])], ON_DEVICE)


def is_of_program(name: str) -> bool:
    """Whether a range of the host is the program's own; the runtime's have names of C++ or of its calls."""
    return "::" not in name and "=>" not in name


_DIGITS = 18
"""Digits that a number of 64 bits may not have."""


DETECTED = frozenset({"steps-on-device", "steps-by-program"})
"""Codes of the findings about steps that nobody chose."""


def step_findings(steps: Steps, file: str) -> Iterator[Finding]:
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
