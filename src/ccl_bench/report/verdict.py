"""The verdict on a run in words: step breakdown, gains of changes, and limits of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, ranks_do
from ccl_bench.report.formatting import duration
from ccl_bench.report.page_model import PageCause, PageVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.result import diagnosis
    from ccl_bench.result.diagnosis import Diagnosed, Opportunity
    from ccl_bench.result.inspection import Inspection

ON_TOP = 3
"""Number of opportunities that a report names at its top."""

_ON_DEVICE = {
    "compute": "compute",
    "waiting": "waiting for other ranks",
    "transfer": "transfer",
    "copies": "copies",
    "idle": "idle",
}
_ON_THREADS = _ON_DEVICE | {"compute": "in operators", "idle": "in no operator"}

_SMALL = 0.005
"""Share of a part below which it is not named: the large parts are rounded by as much."""

_CLOSE = 10
"""Percent from which a share has no decimal."""

DID = {
    "launching": "while hosts launch call after call",
    "data loading": "in data loading",
    "garbage collection": "in garbage collection",
    "compilation": "in compilation",
    "named range": "in ranges without launches",
    "operator": "in operators without launches",
    "unnamed pause": "in pauses of hosts without a name",
    "blocking call": "in calls that wait for the device",
    "long call": "in long calls",
    "first use": "in first launches of kernels",
    "between queued work": "between queued work",
    "ends of the recording": "at the ends of the recording",
    "no host recorded": "with no host recorded",
    "unknown": "for an unknown reason",
}
"""Cause of idle time → what the hosts did, in a sentence."""

MUCH = 0.1
"""Share of the step from which idle time that no rule explains is worth a sentence: no run has none."""

ALONE = 0.5
"""Share of a time that is lost in waiting below which the gain of the latest rank does not explain it."""


def verdict_sentence(breakdown: diagnosis.Verdict) -> str:
    """Return the step breakdown in one sentence: the length and the shares of the parts."""
    names = _ON_DEVICE if breakdown.on_device else _ON_THREADS
    parts = [f"{_share(share)} {names[part]}" for part, share in breakdown.parts.items() if share >= _SMALL]
    where = (
        breakdown.devices if breakdown.on_device and breakdown.devices else counted(breakdown.ranks, "rank")
    )
    where += "" if breakdown.on_device else " without a device"
    what = "traced" if breakdown.is_whole_trace else "a step"
    if breakdown.traced_step_s is not None:
        what += f" ({duration(breakdown.traced_step_s)} while it is traced)"
    return f"{duration(breakdown.step_s)} {what} on {where}: {', '.join(parts)}."


def _share(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= _CLOSE else f"{percent:.1f} %"


def gain(opportunity: Opportunity) -> str:
    """Return the gain of an opportunity, as `-340 ms (-54 %, ± 3 %)`; the error is a share of the step."""
    if opportunity.gain_s is None or opportunity.share is None:
        return "gain unknown"
    error = ""
    if opportunity.gain_error is not None and opportunity.gain_s > 0:
        error = f", ± {_share(opportunity.gain_error * opportunity.share / opportunity.gain_s)}"
    return f"-{duration(opportunity.gain_s)} (-{_share(opportunity.share)}{error})"


def remarks(diagnosed: Diagnosed) -> Iterator[str]:
    """Yield the basis and the limits of the answer, each in a sentence."""
    breakdown = diagnosed.verdict
    if breakdown is None:
        yield f"No verdict: {diagnosed.why_no_verdict}."
        return
    if breakdown.unattributed >= _SMALL:
        yield (
            f"{_share(breakdown.unattributed)} of the step is counted as transfer but may "
            "be waiting: the traces do not show when the other ranks arrived."
        )
    idle = breakdown.parts["idle"]
    if idle >= _SMALL:
        causes = [
            f"{_share(part.share)} {DID[part.cause]}{f' ({part.name})' if part.name else ''}"
            for part in breakdown.idle
            if part.share >= _SMALL
        ]
        if causes:
            yield f"Devices are idle for {_share(idle)} of the step: {', '.join(causes)}."
    if diagnosed.waiting is not None and (sentences := [*who_waits(diagnosed)]):
        yield " ".join(sentences)
    if diagnosed.why_no_gains:
        yield f"The gains of changes are unknown: {diagnosed.why_no_gains}."
    elif not diagnosed.diagnoses:
        yield _no_cause(breakdown)


def who_waits(diagnosed: Diagnosed) -> Iterator[str]:
    """Yield how long ranks wait, who is latest, and what the step gains without."""
    waiting, breakdown = diagnosed.waiting, diagnosed.verdict
    if breakdown is None or breakdown.parts["waiting"] < _SMALL:
        return
    yield f"Ranks wait {_share(breakdown.parts['waiting'])} of the step for others."
    if waiting is None:
        return
    latest = ranks_do(waiting.latest, "is", "are")
    if waiting.gain_of_all_s < _SMALL * (breakdown.traced_step_s or breakdown.step_s):
        yield f"{latest} latest, but a step would hardly gain if all ranks took the median of their times."
        return
    yield (
        f"{latest} latest: with the times of the other ranks, a step would be "
        f"{duration(waiting.gain_of_latest_s)} shorter; if all ranks took the median of their times, "
        f"{duration(waiting.gain_of_all_s)}."
    )
    if waiting.gain_of_latest_s < ALONE * waiting.gain_of_all_s:
        yield "One rank alone gains less, because others are nearly as late, or late at other times."


def _no_cause(breakdown: diagnosis.Verdict) -> str:
    """Return why nothing is reported, and what is known of the idle time nevertheless."""
    if breakdown.steps < 2:
        text = "No change gains 3 % of the step; with one step its noise is unknown."
    else:
        text = "No cause of lost time exceeds the noise of the steps."
    idle = breakdown.parts["idle"]
    if breakdown.on_device and idle >= MUCH:
        largest = breakdown.idle[0].cause if breakdown.idle else "unknown"
        text += f" The devices are idle for {_share(idle)} of the step all the same"
        if largest == "no host recorded":
            text += ": what they waited for is not known, since no call of a host was recorded"
        elif largest in {"unknown", "ends of the recording"}:
            text += ": the traces do not show what they waited for"
        text += "."
    return text


def verdict(diagnosed: Diagnosed) -> PageVerdict:
    """Return the verdict of a page: the sentence, and the causes with the largest gains."""
    shown, rest = diagnosed.diagnoses[:ON_TOP], len(diagnosed.diagnoses) - ON_TOP
    more = [f"{counted(rest, 'smaller cause')}: ccl-bench diagnose shows all."] if rest > 0 else []
    return PageVerdict(
        verdict_sentence(diagnosed.verdict) if diagnosed.verdict else "",
        tuple(PageCause(each.title, gain(each), each.remedy, each.name) for each in shown),
        (*remarks(diagnosed), *more),
    )


def quality(inspection: Inspection) -> str:
    """Return the completeness of the data, in one line."""
    count, of_all = len(inspection.ranks), inspection.world_size
    ranks = f"{count:,} of {counted(of_all, 'rank')}" if of_all else counted(count, "rank")
    steps = {(trace.window, step) for trace in inspection.traces for step in trace.steps}
    parts = [ranks if count else "", counted(len(steps), "step") if steps else ""]
    return ", ".join(filter(None, ["complete" if not inspection.issues else "", *parts]))
