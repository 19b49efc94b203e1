"""Whether a run has the steps that were chosen; what it has instead is named."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ccl_bench.analysis.steps.choice import CHOSEN_RANGE, select_step_times
from ccl_bench.base.errors import UsageError
from ccl_bench.base.findings import Finding
from ccl_bench.base.registry import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ccl_bench.base.lazy_polars import pl
    from ccl_bench.result.step_choice import StepChoice
    from ccl_bench.run.trace_tables import Reduced

_NAMED = 12
"""Steps or ranges that are named at most; the others are counted or left out."""


def choice_findings(
    choice: StepChoice, traces: Sequence[Reduced], recorded: pl.DataFrame | None
) -> list[Finding]:
    """Return what is to be said of a choice of steps; `recorded` are the step times of a side file.

    Raises UsageError for a marker that names no range, for steps that neither traces nor file have, and
    where no step is left.
    """
    _check_marker(choice, traces)
    times = None if choice.marker else recorded
    sources = {"the traces": recorded_steps(traces)}
    if times is not None and choice:
        sources[times["source"][0]] = {*times["step"]}
    sources = {name: steps for name, steps in sources.items() if steps}
    if not sources:
        return []
    every = set().union(*sources.values())
    check_numbers(choice, every)
    is_left = any(map(_is_left, [choice] * len(traces), traces))
    if not is_left and (times is None or select_step_times(times, choice).is_empty()):
        message = f"no step is left of {_listed(sorted(every))}: {choice.words}"
        raise UsageError(message, fix="leave fewer out")
    return [*_absent(choice, sources), *_without_any(choice, traces)]


def check_numbers(choice: StepChoice, known: Collection[int]) -> None:
    """Raise UsageError where steps were chosen that are none of the known ones."""
    if missing := list(islice(_missing(choice, known), _NAMED)):
        fix = f"there are {_listed(sorted(known))}"
        raise UsageError(f"no trace holds step {_listed(missing)}", fix=fix)


def recorded_steps(traces: Iterable[Reduced]) -> set[int]:
    """Return the numbers of all steps of traces, of which some were chosen."""
    return {step for trace in traces for step in trace.recorded_steps}


def _check_marker(choice: StepChoice, traces: Sequence[Reduced]) -> None:
    """Raise UsageError where a marker names no range of any trace that could have one."""
    unmarked = [trace for trace in traces if trace.steps_from not in {"", CHOSEN_RANGE} or trace.range_names]
    if not (choice.marker and unmarked) or any(trace.steps_from == CHOSEN_RANGE for trace in traces):
        return
    names = list(dict.fromkeys(name for trace in unmarked for name in trace.range_names))
    known = f"there are ranges such as {_listed(names)}" if names else "the traces hold no named range"
    raise UsageError(f"no range is named {choice.marker!r}", fix=did_you_mean(choice.marker, names) or known)


def _missing(choice: StepChoice, known: Collection[int]) -> Iterator[int]:
    """Yield the numbers that were chosen and are none of the known ones."""
    for first, last in choice.ranges:
        yield from (step for step in range(first, last + 1) if step not in known)


def _is_left(choice: StepChoice, trace: Reduced) -> bool:
    return any(choice.has(step) for step in trace.recorded_steps[choice.skip :])


def _absent(choice: StepChoice, sources: dict[str, set[int]]) -> Iterator[Finding]:
    """Yield a finding for each source that lacks chosen steps which another has."""
    for name, steps in sources.items():
        missing = list(islice(_missing(choice, steps), _NAMED))
        if missing:
            touches = "steps" if name == "the traces" else "step_times"
            have = sum(map(choice.has, steps))
            rest = f"what comes from there is of {have} steps" if have else "nothing comes from there"
            message = f"{name} hold no step {_listed(missing)}, which was chosen: {rest}"
            yield Finding("chosen-steps-missing", "warning", message, touches=(touches,))


def _without_any(choice: StepChoice, traces: Sequence[Reduced]) -> Iterator[Finding]:
    """Yield a finding for each trace that has steps and none of the chosen ones."""
    for trace in traces:
        if trace.recorded_steps and not _is_left(choice, trace):
            file = trace.trace.relative
            message = f"{file} has none of the chosen steps, and is in no number of steps"
            yield Finding("chosen-steps-missing", "warning", message, file, trace.rank, touches=("steps",))


def _listed(things: Sequence[object]) -> str:
    more = ", ..." if len(things) > _NAMED else ""
    return ", ".join(map(str, things[:_NAMED])) + more
