"""Answers of `what-if` as text: the step with and without stragglers, and the gain of each scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.findings import issue_of
from ccl_bench.base.text import counted, plain
from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.report.inspection import issues

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ccl_bench.result.what_if import CriticalPath, Explained, WhatIf

ROWS = 8
"""Largest number of rows of a table; further rows are counted."""


def what_if_page(answer: WhatIf) -> Group:
    """Return the whole page."""
    could = (
        f"{_milliseconds(answer.t_ideal_s)} without stragglers: it takes {answer.slowdown:.3f} times as long"
    )
    lines = [f"{_milliseconds(answer.t_original_s)} a step; {could}"]
    if answer.m_w:
        of_stage = "stage" in answer.by
        names = ", ".join(
            f"rank {rank} of stage {stage}" if of_stage else f"rank {rank}"
            for rank, stage in answer.m_w.workers
        )
        lines.append(f"{names}: {_explained(answer.m_w)}")
    if answer.m_s:
        lines.append(f"last stage: {_explained(answer.m_s)}")
    lines.append(f"mean of {counted(len(answer.steps), 'step')}; ideal: {answer.idealisation}")
    unexplained = f"{100 * answer.unexplained:.2f} % of the recorded step"
    lines.append(f"unexplained: {unexplained}, {_milliseconds(answer.t_recorded_s)}")
    parts: list[RenderableType] = [
        heading(plain(answer.run)),
        *(indented(Text(plain(line))) for line in lines),
    ]
    if answer.scenarios:
        rows = [
            (
                each.name,
                _milliseconds(each.t_s),
                _milliseconds(each.gain_s),
                f"{100 * each.gain_s / answer.t_original_s:.1f} %",
            )
            for each in answer.scenarios
        ]
        scenarios = aligned(("scenario", "step", "gain", "of the step"), rows, right=(1, 2, 3), wide=(0,))
        parts += [Text(), heading("Scenarios"), indented(scenarios)]
    parts += [Text(), heading("Critical path"), indented(critical_path_page(answer.critical_path))]
    slowdowns = []
    for kind, by in answer.by.items():
        ordered = sorted(by.items(), key=lambda item: -item[1])
        slowdowns += [(kind.capitalize(), name, f"{value:.4f}") for name, value in ordered[:ROWS]]
        if len(ordered) > ROWS:
            slowdowns.append((kind.capitalize(), f"{len(ordered) - ROWS} more", ""))
    parts += [
        Text(),
        heading("Slowdown if all but one take their ideal time"),
        indented(aligned(("", "", "slowdown"), slowdowns, right=(2,), wide=(1,))),
    ]
    if answer.findings:
        parts += [Text(), heading("Findings"), indented(issues(map(issue_of, answer.findings)))]
    return Group(*parts)


def _milliseconds(seconds: float) -> str:
    """Return a time in milliseconds with five digits, so that small gains can be subtracted."""
    return f"{1000 * seconds:,.1f} ms"


def _explained(explained: Explained) -> str:
    return (
        f"alone ideal: {100 * explained.rem:+.1f} % of the slowdown disappears; "
        f"alone as recorded: {100 * explained.add:+.1f} % returns"
    )


def critical_path_page(path: CriticalPath) -> RenderableType:
    """Return the parts of the critical path, each with the gain if it takes 10 % less."""
    rows = []
    for part in path.parts[:ROWS]:
        gain = path.sensitivities.get(f"{part.worker} {part.kind}")
        tenth = "" if gain is None else _milliseconds(gain)
        rows.append((part.worker, part.kind, _milliseconds(part.took_s), f"{100 * part.share:.1f} %", tenth))
    head = ("rank", "", "on the path", "of it", "gain if 10 % shorter")
    return aligned(head, rows, right=(2, 3, 4), wide=(1,))
