"""Sentences of a comparison that text, Markdown and HTML share."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.report.formatting import amount, duration, short, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.comparison.changes import Change
    from ccl_bench.comparison.comparability import Comparability, Difference
    from ccl_bench.comparison.compare import Comparison, Pair
    from ccl_bench.comparison.step_breakdown import Attribution, Division, StepPart
    from ccl_bench.comparison.sweeps import SweepChange
    from ccl_bench.comparison.thresholds import Judgement

ORDER = ("worse", "better", "changed", "cannot tell", "no change", "not comparable")
"""Verdicts in the order in which they are shown."""

_LONG = 60
_BRACKETS = re.compile(r"<[^<>]*>|\((?!anonymous)[^()]*\)")

_TENTH = 0.1
_LARGE = 10.0


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Return changes, the most important first, then by name."""
    return sorted(changes, key=lambda change: (ORDER.index(change.verdict), change.metric.lower()))


def value(number: float | None, unit: str) -> str:
    """Return a value of a metric, or a dash."""
    return "-" if number is None else with_unit(number, unit)


def signed_percent(share: float) -> str:
    """Return a relative change in percent, with its sign."""
    if not share:
        return "0 %"
    percent = 100 * share
    digits = 2 if abs(percent) < _TENTH else 0 if abs(percent) >= _LARGE * _LARGE else 1
    return f"{percent:+.{digits}f} %"


def relative(change: Change) -> str:
    """Return the relative change, or a dash."""
    return "-" if change.relative is None else signed_percent(change.relative)


def interval(change: Change) -> str:
    """Return the interval of the change, as a share of the baseline if possible."""
    bounds = change.interval
    if bounds is None:
        return "-"
    if not change.baseline:
        return f"{bounds.low:+.3g} to {bounds.high:+.3g}"
    low, high = (signed_percent(limit / abs(change.baseline)) for limit in (bounds.low, bounds.high))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def why(change: Change) -> str:
    """Return the remarks about a verdict."""
    return "; ".join(change.remarks)


def seconds(part: StepPart) -> str:
    """Return the change of a part of a step, with its sign."""
    return ("+" if part.difference_s > 0 else "") + duration(part.difference_s)


def short_name(name: str) -> str:
    """Return a long name without the parts in brackets: templates and arguments of a kernel."""
    if len(name) <= _LONG:
        return name
    plain = name.removeprefix("void ")
    while (shorter := _BRACKETS.sub("", plain)) != plain:
        plain = shorter
    return plain if len(plain) <= _LONG else f"{plain[:_LONG]}..."


def headline(changes: Sequence[Change]) -> str:
    """Return the number of metrics by verdict."""
    counts = {verdict: sum(change.verdict == verdict for change in changes) for verdict in ORDER}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "no metric"


def is_apart(change: Change) -> bool:
    """Whether the two numbers of a change are not comparable: one is missing, or something rules it out."""
    return change.verdict == "not comparable" or change.is_blocked or change.difference is None


def apart(judged: Comparability, changes: Sequence[Change]) -> str:
    """Return in a line how many numbers are not comparable, and why; empty if all are."""
    blocked = [change for change in changes if is_apart(change)]
    if not blocked:
        return ""
    verb = "is" if len(blocked) == 1 else "are"
    count = f"{len(blocked)} of {counted(len(changes), 'number')} {verb} not comparable"
    if judged.workload:
        return f"{count}: the runs did different work"
    # The rest of a remark names the metric or its value, which differ from number to number.
    reasons = Counter(change.remarks[0].partition(": ")[0] for change in blocked if change.remarks)
    if not reasons:
        return count
    ((reason, affected),) = reasons.most_common(1)
    if affected == len(blocked):
        return f"{count}: {reason}"
    return f"{count}: {reason} ({affected}), or for another reason ({len(blocked) - affected})"


def comparability(judged: Comparability) -> str:
    """Return in a sentence whether two runs are comparable."""
    if judged.verdict == "not comparable":
        names = ", ".join(each.field for each in judged.workload)
        return f"not comparable: they did different work, because they differ in {names}"
    if judged.verdict == "unknown":
        return (
            "comparable only if they did the same work; to decide this, both cards must state "
            f"{', '.join(judged.unknown)}"
        )
    return "comparable: they did the same work"


def on_one_side(judged: Comparability) -> str:
    """Return the compared fields that only one side states; empty if none."""
    names = [each.field for each in judged.studied if each.baseline is None or each.other is None]
    return f"only one side states {', '.join(names)}" if names else ""


def on_both_sides(judged: Comparability) -> tuple[Difference, ...]:
    """Return the compared fields that both sides state."""
    return tuple(e for e in judged.studied if e.baseline is not None and e.other is not None)


def field_values(each: Difference) -> tuple[str, str]:
    """Return the two values of a field; a dash for a missing one."""
    return _field_value(each.baseline), _field_value(each.other)


def _field_value(setting: object) -> str:
    if setting is None:
        return "-"
    if isinstance(setting, float):
        return short(setting)
    return ", ".join(map(str, setting)) if isinstance(setting, list | tuple) else str(setting)


def verdict(comparison: Comparison, pair: Pair) -> str:
    """Return in one sentence which run is faster, by how much and why; empty if steps are unknown."""
    attribution = pair.attribution
    if attribution is None:
        return ""
    difference = attribution.untraced or attribution
    step, traced = difference.step, attribution.step
    times = f"{duration(step.other_s)} a step, {duration(step.baseline_s)} there"
    if attribution.untraced:
        times = (
            f"{duration(step.other_s)} a step ({duration(traced.other_s)} while it is traced), "
            f"{duration(step.baseline_s)} there ({duration(traced.baseline_s)})"
        )
    if not step.baseline_s:
        return ""
    if difference.is_within_noise:
        return f"{pair.name} is as fast as {comparison.baseline} within the noise of the steps: {times}."
    word = "slower" if step.difference_s > 0 else "faster"
    share = f"{100 * abs(step.difference_s) / step.baseline_s:.1f} %"
    largest = max(attribution.finest_parts, key=lambda part: part.difference_s * step.difference_s)
    is_explained = traced.difference_s * step.difference_s > 0 and not attribution.is_within_noise
    which = "; of the traced step" if attribution.untraced else ","
    why = f"{which} mostly {label(largest.name)} ({seconds(largest)})" if is_explained else ""
    return f"{pair.name} is {share} {word} than {comparison.baseline}: {times}{why}."


def step_sentence(attribution: Attribution) -> str:
    """Return the change of the traced step, and of its parts."""
    step = attribution.step
    what = "mean traced step" if attribution.untraced else "mean step"
    if not step.difference_s:
        return f"The {what} did not change: {duration(step.baseline_s)}."
    word = "longer" if step.difference_s > 0 else "shorter"
    share = f" ({signed_percent(step.difference_s / step.baseline_s)})" if step.baseline_s else ""
    changed = f"The {what} got {duration(abs(step.difference_s))} {word}{share}"
    if attribution.is_within_noise:
        return f"{changed}, which may be noise."
    largest = sorted(attribution.finest_parts, key=lambda part: -abs(part.difference_s))
    parts = ", ".join(f"{label(part.name)} {seconds(part)}" for part in largest if part.difference_s)
    unknown = "" if attribution.interval else " Its noise is unknown."
    return f"{changed}: {parts}.{unknown}"


SWEEP = "Throughput at equal interactivity"
SWEEP_NOTE = (
    "* interpolated between neighbours on the front, both axes logarithmic: mean error 12 %, mostly too low"
)


def sweep_sentence(change: SweepChange) -> str:
    """Return the ratio of two sweeps in one sentence, or why they are not compared."""
    if change.refused:
        return f"Not compared: {change.refused}."
    ratios = [point.ratio for point in change.points]
    low, high = change.points[0].interactivity, change.points[-1].interactivity
    factor = " to ".join(dict.fromkeys(f"{edge:.3g}" for edge in (min(ratios), max(ratios))))
    at = f"at {amount(low)}" if len(ratios) == 1 else f"from {amount(low)} to {amount(high)}"
    return f"The run has {factor} times the throughput of the baseline {at} tokens/s per user."


def sweep_head(change: SweepChange) -> tuple[str, ...]:
    """Return the columns of the rows of two sweeps."""
    unit = "output tokens/s per GPU" if change.per_gpu else "output tokens/s, all GPUs"
    return ("tokens/s per user", f"baseline, {unit}", f"run, {unit}", "ratio")


def sweep_rows(change: SweepChange) -> list[tuple[str, ...]]:
    """Return the throughput of both sides at each interactivity; a star marks interpolated values."""
    return [
        (
            amount(point.interactivity),
            amount(point.baseline) + ("" if point.is_baseline_measured else " *"),
            amount(point.other) + ("" if point.is_other_measured else " *"),
            f"{point.ratio:.3g}",
        )
        for point in change.points
    ]


def label(name: str) -> str:
    """Return the name of a part of a step as words."""
    return name.replace("_", " ")


def division_title(division: Division) -> str:
    """Return the title of a breakdown."""
    return f"{label(division.of)} by {division.name}" if division.of else division.name


def judgement(judged: Judgement) -> str:
    """Return the outcome of a threshold."""
    if judged.outcome == "crossed":
        return f"limit {judged.threshold} is exceeded by {', '.join(judged.metrics)}"
    if judged.outcome == "not judged":
        return f"limit {judged.threshold} cannot be judged: {judged.reason}"
    return f"limit {judged.threshold} is met"


def noise_note(comparison: Comparison) -> str:
    """Return an explanation of the verdicts."""
    return (
        f"{100 * comparison.confidence:.0f} % of such intervals contain the true difference, estimated from "
        f"the spread over steps. Below {100 * comparison.tolerance:g} % changes are called neither better "
        "nor worse."
    )


def title(comparison: Comparison, pair: Pair) -> str:
    """Return the title of a pair: a run against its baseline."""
    return f"{pair.name} against {comparison.baseline}"
