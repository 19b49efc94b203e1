"""The verdict on a run in words: where a step goes, what changes are worth, what cannot be said."""

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
"""Opportunities that a report names before everything else."""

_ON_DEVICE = {
    "compute": "compute",
    "waiting": "waiting for other ranks",
    "transfer": "transfer",
    "copies": "copies",
    "idle": "idle",
}
_ON_THREADS = _ON_DEVICE | {"compute": "in operators", "idle": "in no operator"}

_SMALL = 0.005
"""Share of a part that is not worth naming."""

_CLOSE = 10


def verdict_sentence(found: diagnosis.Verdict) -> str:
    """Return where the step goes: its length, and the shares of its parts, in one sentence."""
    names = _ON_DEVICE if found.on_device else _ON_THREADS
    parts = [f"{_share(share)} {names[part]}" for part, share in found.parts.items() if share >= _SMALL]
    where = found.devices if found.on_device and found.devices else counted(found.ranks, "rank")
    where += "" if found.on_device else " without a device"
    what = "traced" if found.is_whole_trace else "a step"
    if found.traced_step_s is not None:
        what += f" ({duration(found.traced_step_s)} while it is traced)"
    return f"{duration(found.step_s)} {what} on {where}: {', '.join(parts)}."


def _share(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= _CLOSE else f"{percent:.1f} %"


def gain(found: Opportunity) -> str:
    """Return what an opportunity is worth, as `-340 ms (-54 %, ± 3 %)`; the error is of the step too."""
    if found.gain_s is None or found.share is None:
        return "gain unknown"
    error = ""
    if found.gain_error is not None and found.gain_s > 0:
        error = f", ± {_share(found.gain_error * found.share / found.gain_s)}"
    return f"-{duration(found.gain_s)} (-{_share(found.share)}{error})"


def remarks(found: Diagnosed) -> Iterator[str]:
    """Yield what the answer rests on and what it cannot say, each in a sentence."""
    if found.verdict is None:
        yield f"No verdict: {found.why_no_verdict}."
    elif found.verdict.unattributed >= _SMALL:
        yield (
            f"{_share(found.verdict.unattributed)} of the step is counted as transfer and may be waiting: "
            "the traces do not show when the other ranks came."
        )
    if found.why_no_gains and found.verdict is not None:
        yield f"What changes are worth is unknown: {found.why_no_gains}."
    elif found.verdict is not None and not found.diagnoses:
        yield "No cause of lost time was found that is worth more than the noise of the steps."


def verdict(found: Diagnosed) -> Verdict:
    """Return what a page says first: the sentence, and the causes that are worth most."""
    return Verdict(
        verdict_sentence(found.verdict) if found.verdict else "",
        tuple(Cause(each.title, gain(each), each.remedy, each.name) for each in found.diagnoses[:ON_TOP]),
        (*remarks(found), *_more(found)),
    )


def _more(found: Diagnosed) -> Iterator[str]:
    rest = len(found.diagnoses) - ON_TOP
    if rest > 0:
        yield f"{counted(rest, 'smaller cause')}: ccl-bench diagnose shows all."


def quality(found: Inspection) -> str:
    """Return what is there of the data, in one line."""
    of_all = f" of {found.world_size}" if found.world_size else ""
    ranks = f"{len(found.ranks)}{of_all} ranks" if found.ranks else ""
    steps = {(trace.window, step) for trace in found.traces for step in trace.steps}
    parts = [ranks, counted(len(steps), "step") if steps else ""]
    return ", ".join(filter(None, ["complete" if not found.issues else "", *parts]))
