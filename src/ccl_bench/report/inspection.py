"""Inspections and validations as text: contents of a run, measurable metrics, and issues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, devices_named, plain
from ccl_bench.report.console import Group, Text, aligned, bullet, heading, indented
from ccl_bench.report.formatting import duration, ranges, short, size, step_numbers
from ccl_bench.report.results import counts, refusals
from ccl_bench.report.verdict import verdict_sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from ccl_bench.base.findings import Issue
    from ccl_bench.result.inspection import InspectedTrace, Inspection, Validation

ROWS = 16
"""Largest number of rows of a table; further rows are counted."""

_SEVERITY_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def inspection_page(inspection: Inspection, *, why: bool = False) -> Group:
    """Return the whole page; with `why` it also lists the metrics for other kinds of runs."""
    groups = [
        (
            group.dimension if group.users else "-",
            "?" if group.size is None else str(group.size),
            "unknown" if group.ranks is None else ranges(group.ranks, 6),
            counted(group.users, "rank") if group.users else "nobody",
            group.description,
        )
        for group in inspection.groups[:ROWS]
    ]
    facts = [
        (
            name,
            short(fact.value) if isinstance(fact.value, float) else str(fact.value),
            Text(plain(fact.source), "dim"),
        )
        for name, fact in inspection.facts.items()
    ]
    files: list[tuple[str, str | Text]] = [
        (name, "read" if kind == name else kind) for name, kind in inspection.files.items()
    ]
    files += [(name, Text("not recognised, not used", "dim")) for name in inspection.unknown_files[:ROWS]]
    if len(inspection.unknown_files) > ROWS:
        files.append((f"... and {len(inspection.unknown_files) - ROWS:,} more", ""))
    measured = [(each.metric, Text(each.unit, "dim")) for each in inspection.metrics if each.status == "ok"]

    parts: list[RenderableType] = [heading(plain(inspection.run))]
    if inspection.verdict:
        parts.append(indented(Text(plain(verdict_sentence(inspection.verdict)))))
    parts.append(indented(_overview(inspection)))
    if inspection.traces:
        parts += [Text(), heading("Traces"), indented(_traces(inspection.traces))]
    if groups:
        table = aligned(("DIMENSION", "SIZE", "RANKS", "USED BY", "DESCRIPTION"), groups, right=(1,))
        content = _with_rest(table, len(inspection.groups))
        parts += [Text(), heading("Process groups"), indented(content)]
    if facts:
        parts += [Text(), heading("Facts"), indented(aligned(("FACT", "VALUE", "FROM"), facts))]
    if files:
        parts += [Text(), heading("Other files"), indented(aligned(("", ""), files))]
    if inspection.issues:
        parts += [Text(), heading("Data quality"), indented(issues(inspection.issues))]
    title = f"Can be measured ({len(measured)} of {len(inspection.metrics)} metrics)"
    parts += [Text(), heading(title), indented(aligned(("", ""), measured) if measured else Text("nothing"))]
    if unmeasured := _unmeasured(inspection, why=why):
        parts += [Text(), heading("No value for"), indented(Group(*unmeasured))]
    return Group(*parts)


def _overview(inspection: Inspection) -> RenderableType:
    """Return the facts about the run as a whole."""
    traces = inspection.traces
    formats = ", ".join(dict.fromkeys(trace.format for trace in traces))
    volume = size(sum(trace.size_bytes for trace in traces))
    ranks = "unknown" if traces else ""
    if inspection.ranks:
        of_all = f" of {inspection.world_size}" if inspection.world_size else ""
        missing = f"; missing {ranges(inspection.missing_ranks)}" if inspection.missing_ranks else ""
        ranks = f"{len(inspection.ranks)}{of_all}: {ranges(inspection.ranks)}{missing}"
    windows = sorted({trace.window for trace in traces if trace.window is not None})
    devices = []
    for device in inspection.devices:
        memory = f", {size(device.memory_bytes)}" if device.memory_bytes else ""
        units = f", {device.multiprocessors} multiprocessors" if device.multiprocessors else ""
        devices.append(f"{devices_named(device.count, device.name)}{memory}{units}")
    kernels, copies, operators = (
        sum(getattr(trace, name) for trace in traces) for name in ("kernels", "copies", "cpu_ops")
    )
    work = [
        counted(kernels, "kernel") if kernels else "",
        f"{copies:,} copies and sets" if copies else "",
        counted(operators, "CPU operator") if operators else "",
    ]
    communication = "no calls" if any(work) else ""
    if inspection.calls:
        calls = ", ".join(f"{name} {count:,}" for name, count in inspection.calls.items())
        communication = f"{counted(sum(inspection.calls.values()), 'call')}: {calls}"
    lines = {
        "traces": f"{counted(len(traces), f'{formats} file')}, {volume}" if traces else "none",
        "ranks": ranks,
        "windows": ranges(windows),
        "steps": _steps(traces) + (f"; chosen: {inspection.choice}" if inspection.choice else ""),
        "devices": "; ".join(devices),
        "libraries": ", ".join(f"{name} {' and '.join(v)}" for name, v in inspection.libraries.items()),
        "work": ", ".join(filter(None, work)),
        "communication": communication,
    }
    return aligned(("", ""), [(Text(name, "dim"), text) for name, text in lines.items() if text])


def _steps(traces: Sequence[InspectedTrace]) -> str:
    counts = sorted({len(trace.steps) for trace in traces if trace.is_readable and _holds_work(trace)})
    sources = ", ".join(sorted({trace.step_source for trace in traces if trace.step_source}))
    if not counts:
        return ""
    many = f"{counts[0]} to {counted(counts[-1], 'step')}" if len(counts) > 1 else counted(counts[0], "step")
    return f"{many} in each trace, from {sources}" if sources else many


def _traces(traces: Sequence[InspectedTrace]) -> RenderableType:
    header = ["RANK", "WINDOW", "STEPS", "SPAN", "KERNELS", "CPU OPS", "CALLS", "SIZE", "FILE"]
    rows = []
    for trace in traces[:ROWS]:
        steps = step_numbers(trace.steps, 4) if trace.is_readable else "unreadable"
        work = [f"{count:,}" for count in (trace.kernels, trace.cpu_ops, trace.communication_calls)]
        cells = [duration(trace.span_s), *work] if _holds_work(trace) else ["-"] * 4
        rows.append(
            [
                "?" if trace.rank is None else str(trace.rank),
                "" if trace.window is None else str(trace.window),
                steps,
                *(cells if trace.is_readable else [""] * 4),
                size(trace.size_bytes),
                trace.file,
            ]
        )
    left_out = set()
    if all(trace.window is None for trace in traces):
        left_out.add("WINDOW")
    if not any(trace.kernels for trace in traces):
        left_out.add("KERNELS")
    columns = [place for place, title in enumerate(header) if title not in left_out]
    numbers = {"RANK", "SPAN", "KERNELS", "CPU OPS", "CALLS", "SIZE"}
    table = aligned(
        [header[place] for place in columns],
        [[row[place] for place in columns] for row in rows],
        right=[new for new, place in enumerate(columns) if header[place] in numbers],
        cut=True,
    )
    return _with_rest(table, len(traces))


def _holds_work(trace: InspectedTrace) -> bool:
    """Whether a trace shows when something ran; snapshots of memory and Execution Traces do not."""
    return bool(trace.span_s or trace.kernels or trace.cpu_ops or trace.communication_calls)


def _with_rest(table: RenderableType, count: int) -> RenderableType:
    if count <= ROWS:
        return table
    return Group(table, Text(f"... and {count - ROWS:,} more; --format json lists all", "dim"))


def issues(problems: Iterable[Issue]) -> RenderableType:
    """Return the issues, one after the other: place, message and fix."""
    bullets = []
    for issue in problems:
        place = f"{issue.file}:{issue.line}" if issue.file and issue.line else issue.file
        message = ": ".join(part for part in (place, issue.path, issue.message) if part)
        lines = [Text.assemble(plain(message), (f" ({issue.code})" if issue.code else "", "dim"))]
        if issue.fix:
            lines.append(Text(f"fix: {plain(issue.fix)}", "dim"))
        bullets.append(bullet(severity_mark(issue.severity), lines))
    return Group(*bullets)


def severity_mark(severity: str) -> Text:
    """Return a severity in its colour, padded to the longest."""
    return Text(f"{severity:<7}", _SEVERITY_STYLES[severity])


def _unmeasured(inspection: Inspection, *, why: bool) -> list[RenderableType]:
    """Return the metrics without a value and their reasons; those for other kinds of runs only with `why`."""
    parts: list[RenderableType] = []
    for each in refusals(inspection.metrics, why=why):
        parts.append(Text(plain(str(each))))
        if each.fix:
            parts.append(indented(Text(f"fix: {plain(each.fix)}", "dim")))
    if not why and (line := counts(inspection.metrics)):
        parts.append(Text(line, "dim"))
    return parts


def validation_page(validations: Sequence[Validation]) -> Group:
    """Return the issues of every place, and a last line that counts them."""
    parts: list[RenderableType] = []
    for validation in validations:
        if validation.issues:
            parts += [issues(validation.issues), Text()]
    for validation in validations:
        severities = [issue.severity for issue in validation.issues]
        severity_counts = [
            counted(severities.count(name), name)
            for name in ("error", "warning", "note")
            if name in severities
        ]
        style = "red" if "error" in severities else "yellow" if "warning" in severities else "green"
        verdict = (", ".join(severity_counts) or "nothing wrong", style)
        parts.append(Text.assemble(f"{plain(validation.place)} ({validation.kind}): ", verdict))
    return Group(*parts)
