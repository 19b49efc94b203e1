"""The verdict on a run in words: step breakdown, gains of changes, and limits of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.report.formatting import duration
from ccl_bench.report.page_model import Cause, Verdict

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
"""Share of a part below which it is not named."""

_CLOSE = 10


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
    if diagnosed.verdict is None:
        yield f"No verdict: {diagnosed.why_no_verdict}."
    elif diagnosed.verdict.unattributed >= _SMALL:
        yield (
            f"{_share(diagnosed.verdict.unattributed)} of the step is counted as transfer but may "
            "be waiting: the traces do not show when the other ranks arrived."
        )
    if diagnosed.why_no_gains and diagnosed.verdict is not None:
        yield f"The gains of changes are unknown: {diagnosed.why_no_gains}."
    elif diagnosed.verdict is not None and not diagnosed.diagnoses:
        yield "No cause of lost time exceeds the noise of the steps."


def verdict(diagnosed: Diagnosed) -> Verdict:
    """Return the verdict of a page: the sentence, and the causes with the largest gains."""
    return Verdict(
        verdict_sentence(diagnosed.verdict) if diagnosed.verdict else "",
        tuple(Cause(each.title, gain(each), each.remedy, each.name) for each in diagnosed.diagnoses[:ON_TOP]),
        (*remarks(diagnosed), *_more(diagnosed)),
    )


def _more(diagnosed: Diagnosed) -> Iterator[str]:
    rest = len(diagnosed.diagnoses) - ON_TOP
    if rest > 0:
        yield f"{counted(rest, 'smaller cause')}: ccl-bench diagnose shows all."


def quality(inspection: Inspection) -> str:
    """Return the completeness of the data, in one line."""
    count, of_all = len(inspection.ranks), inspection.world_size
    ranks = f"{count:,} of {counted(of_all, 'rank')}" if of_all else counted(count, "rank")
    steps = {(trace.window, step) for trace in inspection.traces for step in trace.steps}
    parts = [ranks if count else "", counted(len(steps), "step") if steps else ""]
    return ", ".join(filter(None, ["complete" if not inspection.issues else "", *parts]))
