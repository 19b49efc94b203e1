"""The verdict on a run and what would make it faster, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.console import Group, Text, aligned, bullet, heading, indented
from ccl_bench.report.formatting import counted, duration, plain, ranges
from ccl_bench.report.inspection import issues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from ccl_bench.result.diagnosis import Diagnosed, Evidence, Opportunity, Verdict

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


def verdict_sentence(found: Verdict) -> str:
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


def diagnose_page(found: Diagnosed, *, why: bool = False) -> Group:
    """Return the whole answer of `ccl-bench diagnose`."""
    parts: list[RenderableType] = [heading(plain(found.run))]
    if found.verdict is not None:
        parts.append(indented(Text(plain(verdict_sentence(found.verdict)))))
    parts += [indented(Text(plain(each))) for each in remarks(found)]
    for number, each in enumerate(found.diagnoses, start=1):
        parts += [Text(), indented(_opportunity(number, each, len(found.steps)))]
    if found.unexplained is not None:
        unexplained = f"{100 * found.unexplained:.2f} % of the step"
        parts += [Text(), indented(Text(f"The replay leaves {unexplained} unexplained.", "dim"))]
    if why and found.silent:
        rows = [(Text(name, "dim"), reason) for name, reason in found.silent.items()]
        parts += [Text(), heading("Silent"), indented(aligned(("", ""), rows, wide=(1,)))]
    if found.findings:
        parts += [Text(), heading("Data quality"), indented(issues(found.findings))]
    return Group(*parts)


def _opportunity(number: int, found: Opportunity, steps: int) -> RenderableType:
    lines = [Text(plain(found.title)), Text(f"{gain(found)}: {plain(found.change)}", "bold")]
    lines.append(Text(f"fix: {plain(found.remedy)} (--explain {found.name})", "dim"))
    if found.steps and steps > 1:
        seen = f"seen in {len(found.steps)} of {counted(steps, 'step')}: {ranges(found.steps)}"
        lines.append(Text(seen, "dim"))
    lines += [Text(_evidence(each), "dim") for each in found.evidence]
    return bullet(Text(str(number), "bold"), lines)


def _evidence(found: Evidence) -> str:
    where = [f"rank {found.rank}" if found.rank is not None else "", f"step {found.step}"]
    took = duration((found.end_ns - found.start_ns) / 1e9)
    return f"such as {', '.join(filter(None, where))}: {plain(found.operation)}, {took}"


def diagnosis_catalogue(rules: Iterable[tuple[str, str, str]]) -> RenderableType:
    """Return the list of rules, each with its kind and what it detects."""
    return aligned(("DIAGNOSIS", "KIND", "WHAT IT DETECTS"), list(rules), wide=(2,))
