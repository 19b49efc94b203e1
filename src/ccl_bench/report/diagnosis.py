"""A diagnosis as text: the verdict on a run, and what would make it faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, plain
from ccl_bench.base.units import SECOND_NS
from ccl_bench.report.console import Group, Text, aligned, bullet, heading, indented
from ccl_bench.report.formatting import duration, ranges
from ccl_bench.report.inspection import issues
from ccl_bench.report.verdict import gain, remarks, verdict_sentence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from ccl_bench.result.diagnosis import Diagnosed


def diagnose_page(diagnosed: Diagnosed, *, why: bool = False) -> Group:
    """Return the output of `ccl-bench diagnose`."""
    parts: list[RenderableType] = [heading(plain(diagnosed.run))]
    if diagnosed.verdict is not None:
        parts.append(indented(Text(plain(verdict_sentence(diagnosed.verdict)))))
    parts += [indented(Text(plain(each))) for each in remarks(diagnosed)]
    for number, each in enumerate(diagnosed.diagnoses, start=1):
        lines = [Text(plain(each.title)), Text(f"{gain(each)}: {plain(each.change)}", "bold")]
        lines.append(Text(f"fix: {plain(each.remedy)} (--explain {each.name})", "dim"))
        if each.steps and len(diagnosed.steps) > 1:
            of_all = counted(len(diagnosed.steps), "step")
            lines.append(Text(f"seen in {len(each.steps)} of {of_all}: {ranges(each.steps)}", "dim"))
        for evidence in each.evidence:
            where = f"rank {evidence.rank}, " if evidence.rank is not None else ""
            took = duration((evidence.end_ns - evidence.start_ns) / SECOND_NS)
            seen = f"such as {where}step {evidence.step}: {plain(evidence.operation)}, {took}"
            lines.append(Text(seen, "dim"))
        parts += [Text(), indented(bullet(Text(str(number), "bold"), lines))]
    if diagnosed.unexplained is not None:
        unexplained = f"{100 * diagnosed.unexplained:.2f} % of the step"
        parts += [Text(), indented(Text(f"The replay leaves {unexplained} unexplained.", "dim"))]
    if why and diagnosed.silent:
        rows = [(Text(name, "dim"), reason) for name, reason in diagnosed.silent.items()]
        parts += [Text(), heading("Silent"), indented(aligned(("", ""), rows, wide=(1,)))]
    if diagnosed.findings:
        parts += [Text(), heading("Data quality"), indented(issues(diagnosed.findings))]
    return Group(*parts)


def diagnosis_catalogue(rules: Iterable[tuple[str, str, str]]) -> RenderableType:
    """Return the list of rules, each with its kind and what it detects."""
    return aligned(("DIAGNOSIS", "KIND", "WHAT IT DETECTS"), list(rules), wide=(2,))
