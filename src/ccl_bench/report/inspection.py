"""Inspections and validations as text: contents of a run, measurable metrics, and issues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, devices_named
from ccl_bench.report.console import Described, Group, Text, aligned, bullet, heading, indented
from ccl_bench.report.formatting import duration, plain, ranges, short, size, step_numbers
from ccl_bench.report.results import STATUS_WORDS, counts, is_expected
from ccl_bench.report.verdict import verdict_sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from ccl_bench.base.findings import Issue
    from ccl_bench.result.inspection import InspectedFact, InspectedTrace, Inspection, Validation

ROWS = 16
"""Largest number of rows of a table; further rows are counted."""

_SEVERITY_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def inspection_page(inspection: Inspection, *, why: bool = False) -> Group:
    """Return the whole page; with `why` it also lists the metrics for other kinds of runs."""
    sections = (
        ("", Text(plain(verdict_sentence(inspection.verdict))) if inspection.verdict else None),
        ("", _overview(inspection)),
        ("Traces", _traces(inspection.traces)),
        ("Process groups", _groups(inspection)),
        ("Facts", _facts(inspection.facts)),
        ("Other files", _files(inspection)),
        ("Data quality", issues(inspection.issues) if inspection.issues else None),
        (_measured_title(inspection), _measurable(inspection)),
        ("No value for", _unmeasurable(inspection, why=why)),
    )
    parts: list[RenderableType] = [heading(plain(inspection.run))]
    for title, content in sections:
        if content is not None:
            parts += [Text(), heading(title), indented(content)] if title else [indented(content)]
    return Group(*parts)


def _overview(inspection: Inspection) -> RenderableType:
    lines = dict(_lines(inspection))
    return aligned(("", ""), [(Text(name, "dim"), text) for name, text in lines.items() if text])


def _lines(inspection: Inspection) -> Iterator[tuple[str, str]]:
    """Yield the facts about the run as a whole, as (name, text)."""
    traces = inspection.traces
    formats = ", ".join(dict.fromkeys(trace.format for trace in traces))
    volume = size(sum(trace.size_bytes for trace in traces))
    yield "traces", f"{counted(len(traces), f'{formats} file')}, {volume}" if traces else "none"
    yield "ranks", _ranks(inspection)
    windows = sorted({trace.window for trace in traces if trace.window is not None})
    yield "windows", ranges(windows)
    yield "steps", _steps(traces) + (f"; chosen: {inspection.choice}" if inspection.choice else "")
    yield "devices", "; ".join(_devices(inspection))
    yield (
        "libraries",
        ", ".join(f"{name} {' and '.join(values)}" for name, values in inspection.libraries.items()),
    )
    work = {"kernel": "kernels", "copies": "copies", "CPU operator": "cpu_ops"}
    totals = {noun: sum(getattr(trace, name) for trace in traces) for noun, name in work.items()}
    yield "work", ", ".join(_work(totals))
    calls = ", ".join(f"{name} {count:,}" for name, count in inspection.calls.items())
    none = "no calls" if any(totals.values()) else ""
    yield "communication", f"{counted(sum(inspection.calls.values()), 'call')}: {calls}" if calls else none


def _work(totals: dict[str, int]) -> Iterator[str]:
    for noun, count in totals.items():
        if count:
            yield f"{count:,} copies and sets" if noun == "copies" else counted(count, noun)


def _ranks(inspection: Inspection) -> str:
    if not inspection.ranks:
        return "unknown" if inspection.traces else ""
    of_all = (
        f"{len(inspection.ranks)} of {inspection.world_size}"
        if inspection.world_size
        else str(len(inspection.ranks))
    )
    missing = f"; missing {ranges(inspection.missing_ranks)}" if inspection.missing_ranks else ""
    return f"{of_all}: {ranges(inspection.ranks)}{missing}"


def _steps(traces: Sequence[InspectedTrace]) -> str:
    counts = sorted({len(trace.steps) for trace in traces if trace.is_readable and _holds_work(trace)})
    sources = ", ".join(sorted({trace.step_source for trace in traces if trace.step_source}))
    if not counts:
        return ""
    many = f"{counts[0]} to {counted(counts[-1], 'step')}" if len(counts) > 1 else counted(counts[0], "step")
    return f"{many} in each trace, from {sources}" if sources else many


def _devices(inspection: Inspection) -> Iterator[str]:
    for device in inspection.devices:
        memory = f", {size(device.memory_bytes)}" if device.memory_bytes else ""
        units = f", {device.multiprocessors} multiprocessors" if device.multiprocessors else ""
        yield f"{devices_named(device.count, device.name)}{memory}{units}"


def _traces(traces: Sequence[InspectedTrace]) -> RenderableType | None:
    if not traces:
        return None
    has_windows = any(trace.window is not None for trace in traces)
    has_kernels = any(trace.kernels for trace in traces)
    header = ["RANK", "WINDOW", "STEPS", "SPAN", "KERNELS", "CPU OPS", "CALLS", "SIZE", "FILE"]
    left_out = {1: not has_windows, 4: not has_kernels}
    columns = [position for position in range(len(header)) if not left_out.get(position)]
    rows = [_trace_row(trace) for trace in traces[:ROWS]]
    table = aligned(
        [header[position] for position in columns],
        [[row[position] for position in columns] for row in rows],
        right=[new for new, position in enumerate(columns) if position in {0, 3, 4, 5, 6, 7}],
        cut=True,
    )
    return _with_rest(table, len(traces))


def _trace_row(trace: InspectedTrace) -> list[str]:
    rank = "?" if trace.rank is None else str(trace.rank)
    window = "" if trace.window is None else str(trace.window)
    steps = step_numbers(trace.steps, 4)
    if not trace.is_readable:
        return [rank, window, "unreadable", "", "", "", "", size(trace.size_bytes), trace.file]
    counts = [f"{count:,}" for count in (trace.kernels, trace.cpu_ops, trace.communication_calls)]
    cells = [duration(trace.span_s), *counts] if _holds_work(trace) else ["-"] * (1 + len(counts))
    return [rank, window, steps, *cells, size(trace.size_bytes), trace.file]


def _holds_work(trace: InspectedTrace) -> bool:
    """Whether a trace shows when something ran; snapshots of memory and Execution Traces do not."""
    return bool(trace.span_s or trace.kernels or trace.cpu_ops or trace.communication_calls)


def _groups(inspection: Inspection) -> RenderableType | None:
    if not inspection.groups:
        return None
    rows = [
        (
            group.dimension if group.users else "-",
            "?" if group.size is None else str(group.size),
            "unknown" if group.ranks is None else ranges(group.ranks, 6),
            counted(group.users, "rank") if group.users else "nobody",
            group.description,
        )
        for group in inspection.groups[:ROWS]
    ]
    table = aligned(("DIMENSION", "SIZE", "RANKS", "USED BY", "DESCRIPTION"), rows, right=(1,))
    return _with_rest(table, len(inspection.groups))


def _with_rest(table: RenderableType, count: int) -> RenderableType:
    if count <= ROWS:
        return table
    return Group(table, Text(f"... and {count - ROWS:,} more; --format json lists all", "dim"))


def _facts(facts: dict[str, InspectedFact]) -> RenderableType | None:
    if not facts:
        return None
    rows = [(name, _fact(fact.value), Text(plain(fact.source), "dim")) for name, fact in facts.items()]
    return aligned(("FACT", "VALUE", "FROM"), rows)


def _fact(value: object) -> str:
    return short(value) if isinstance(value, float) else str(value)


def _files(inspection: Inspection) -> RenderableType | None:
    rows: list[tuple[str, str | Text]] = [
        (name, "read" if kind == name else kind) for name, kind in inspection.files.items()
    ]
    rows += [(name, Text("not recognised, not used", "dim")) for name in inspection.unknown_files[:ROWS]]
    if len(inspection.unknown_files) > ROWS:
        rows.append((f"... and {len(inspection.unknown_files) - ROWS:,} more", ""))
    return aligned(("", ""), rows) if rows else None


def issues(problems: Iterable[Issue]) -> RenderableType:
    """Return the issues, one after the other: place, message and fix."""
    return Group(*(bullet(severity_mark(issue.severity), _issue_lines(issue)) for issue in problems))


def severity_mark(severity: str) -> Text:
    """Return a severity in its colour, padded to the longest."""
    return Text(f"{severity:<7}", _SEVERITY_STYLES[severity])


def _issue_lines(issue: Issue) -> Iterator[str | Text]:
    place = f"{issue.file}:{issue.line}" if issue.file and issue.line else issue.file
    parts = [part for part in (place, issue.path, issue.message) if part]
    code = f" ({issue.code})" if issue.code else ""
    yield Text.assemble(plain(": ".join(parts)), (code, "dim"))
    if issue.fix:
        yield Text(f"fix: {plain(issue.fix)}", "dim")


def _measured_title(inspection: Inspection) -> str:
    measured_count = sum(metric.status == "ok" for metric in inspection.metrics)
    return f"Can be measured ({measured_count} of {len(inspection.metrics)} metrics)"


def _measurable(inspection: Inspection) -> RenderableType | None:
    rows = [
        (metric.metric, Text(metric.unit, "dim")) for metric in inspection.metrics if metric.status == "ok"
    ]
    return aligned(("", ""), rows) if rows else Text("nothing")


def _unmeasurable(inspection: Inspection, *, why: bool) -> RenderableType | None:
    rows = []
    for metric in inspection.metrics:
        if metric.status != "ok" and (why or not is_expected(metric)):
            reason = [Text(f"{STATUS_WORDS[metric.status]}: {plain(metric.reason)}")]
            if metric.fix:
                reason.append(Text(f"fix: {plain(metric.fix)}", "dim"))
            rows.append((metric.metric, reason))
    parts: list[RenderableType] = [Described(rows)] if rows else []
    if not why and (line := counts(inspection.metrics)):
        parts.append(Text(line, "dim"))
    return Group(*parts) if parts else None


def validation_page(validations: Sequence[Validation]) -> Group:
    """Return the issues of every place, and a last line that counts them."""
    parts: list[RenderableType] = []
    for validation in validations:
        if validation.issues:
            parts += [issues(validation.issues), Text()]
    for validation in validations:
        parts.append(_verdict(validation))
    return Group(*parts)


def _verdict(validation: Validation) -> Text:
    severities = [issue.severity for issue in validation.issues]
    counts = [
        counted(severities.count(name), name) for name in ("error", "warning", "note") if name in severities
    ]
    style = "red" if "error" in severities else "yellow" if "warning" in severities else "green"
    verdict = ", ".join(counts) or "nothing wrong"
    return Text.assemble(f"{plain(validation.place)} ({validation.kind}): ", (verdict, style))
