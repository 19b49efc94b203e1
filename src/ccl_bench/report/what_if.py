"""What scenarios are worth, as text: the step as it is and could be, and what each scenario gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.findings import issue_of
from ccl_bench.base.text import counted
from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.report.formatting import plain
from ccl_bench.report.inspection import issues

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from ccl_bench.result.what_if import CriticalPath, Explained, WhatIf

ROWS = 8
"""Rows of a table that are shown; what is beyond is counted."""


def what_if_page(found: WhatIf) -> Group:
    """Return the whole page."""
    could = f"{_seconds(found.t_ideal_s)} without stragglers: it takes {found.slowdown:.3f} times as long"
    lines = [f"{_seconds(found.t_original_s)} a step; {could}"]
    lines += list(_explanations(found))
    lines.append(f"mean of {counted(len(found.steps), 'step')}; ideal: {found.idealisation}")
    unexplained = f"{100 * found.unexplained:.2f} % of the recorded step"
    lines.append(f"unexplained: {unexplained}, {_seconds(found.t_recorded_s)}")
    parts: list[RenderableType] = [
        heading(plain(found.run)),
        *(indented(Text(plain(line))) for line in lines),
    ]
    if found.scenarios:
        parts += [Text(), heading("Scenarios"), indented(_scenarios(found))]
    parts += [Text(), heading("Critical path"), indented(critical_path_page(found.critical_path))]
    parts += [Text(), heading("Slowdown where all but one takes its ideal time"), indented(_slowdowns(found))]
    if found.findings:
        parts += [Text(), heading("Findings"), indented(issues(map(issue_of, found.findings)))]
    return Group(*parts)


def _seconds(seconds: float) -> str:
    """Return a time in milliseconds with five digits, so that small gains can be subtracted."""
    return f"{1000 * seconds:,.1f} ms"


def _explanations(found: WhatIf) -> Iterable[str]:
    if found.m_w:
        of_stage = "stage" in found.by
        names = ", ".join(
            f"rank {rank} of stage {stage}" if of_stage else f"rank {rank}"
            for rank, stage in found.m_w.workers
        )
        yield f"{names}: {_explained(found.m_w)}"
    if found.m_s:
        yield f"last stage: {_explained(found.m_s)}"


def _explained(explained: Explained) -> str:
    return (
        f"alone ideal {100 * explained.rem:+.1f} % of the slowdown goes; "
        f"alone as recorded {100 * explained.add:+.1f} % comes back"
    )


def _scenarios(found: WhatIf) -> RenderableType:
    rows = [
        (
            each.name,
            _seconds(each.t_s),
            _seconds(each.gain_s),
            f"{100 * each.gain_s / found.t_original_s:.1f} %",
        )
        for each in found.scenarios
    ]
    return aligned(("scenario", "step", "gain", "of the step"), rows, right=(1, 2, 3), wide=(0,))


def critical_path_page(path: CriticalPath) -> RenderableType:
    """Return what the step waited for, what a tenth less of it gains, and how much comes next."""
    rows = []
    for part in path.parts[:ROWS]:
        gain = path.sensitivities.get(f"{part.worker} {part.kind}")
        tenth = "" if gain is None else _seconds(gain)
        rows.append((part.worker, part.kind, _seconds(part.took_s), f"{100 * part.share:.1f} %", tenth))
    head = ("rank", "", "on the path", "of it", "a tenth less gains")
    return aligned(head, rows, right=(2, 3, 4), wide=(1,))


def _slowdowns(found: WhatIf) -> RenderableType:
    rows = []
    for kind, by in found.by.items():
        ordered = sorted(by.items(), key=lambda item: -item[1])
        rows += [(kind.capitalize(), name, f"{value:.4f}") for name, value in ordered[:ROWS]]
        rows += [(kind.capitalize(), f"{len(ordered) - ROWS} more", "")] if len(ordered) > ROWS else []
    return aligned(("", "", "slowdown"), rows, right=(2,), wide=(1,))
