"""The verdict on a run and what would make it faster, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.report.console import Group, Text, aligned, bullet, heading, indented
from ccl_bench.report.formatting import duration, plain, ranges
from ccl_bench.report.inspection import issues
from ccl_bench.report.verdict import gain, remarks, verdict_sentence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from ccl_bench.result.diagnosis import Diagnosed, Evidence, Opportunity


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
