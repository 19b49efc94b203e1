"""What collecting came to, as text: what is in the run, what can be measured, and the next command."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.report.formatting import counted, plain, ranges
from ccl_bench.report.inspection import issues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ccl_bench.collect.collect_run import Collected
    from ccl_bench.collect.launch.failures import Failure
    from ccl_bench.result.inspection import Inspection

_MEASURED = "ok"


def page(done: Collected, found: Inspection) -> Group:
    """Return the page that `ccl-bench collect` prints at its end."""
    names = measurable_metrics(found)
    parts: list[RenderableType] = [
        heading(plain(str(done.output))),
        indented(
            aligned(
                ("", ""), [(Text(name, "dim"), text) for name, text in _summary_rows(done, found) if text]
            )
        ),
    ]
    if found.issues:
        parts += [Text(), heading("Findings"), indented(issues(found.issues))]
    title = f"Measurable: {len(names)} of {len(found.metrics)} metrics"
    parts += [Text(), heading(title), indented(Text(", ".join(names) or "none"))]
    parts += [Text(), *(Text(line) for line in _next_commands(done, has_numbers=bool(names)))]
    return Group(*parts)


def measurable_metrics(found: Inspection) -> list[str]:
    """Return the metrics that have a value."""
    return [metric.metric for metric in found.metrics if metric.status == _MEASURED]


def failure_message(failed: Failure) -> str:
    """Return what is told of a command that failed: how, why, its last words and the way out."""
    lines = [f"the command {failed.what}"]
    if failed.cause:
        lines.append(f"  cause: {failed.cause}")
    lines += [f"  | {line}" for line in failed.lines]
    if failed.fix:
        lines.append(f"  fix: {failed.fix}")
    return "\n".join(lines)


def disk_error_message(done: Collected) -> str:
    """Return what is told where the run could not be put together."""
    where = shlex.quote(str(done.output))
    return (
        f"{done.output}: could not be put together: {done.unwritten}; what was recorded is kept\n"
        f"  fix: make room there, then: ccl-bench collect --output {where}"
    )


def no_trace_message(done: Collected) -> str:
    """Return what is told where no trace was found."""
    where = shlex.quote(str(done.output))
    if done.failure:
        what = "holds no trace: the command ended before it wrote one"
        fix = "run it again without that failure; what it wrote elsewhere is gathered by"
    else:
        what = "holds no trace of a known format"
        fix = "let the command profile itself (docs/collecting.md), or name where it writes:"
    return f"{done.output}: {what}\n  fix: {fix} ccl-bench collect --output {where} --source FOLDER"


def _summary_rows(done: Collected, found: Inspection) -> Iterator[tuple[str, str]]:
    kinds = Counter(trace.format for trace in found.traces)
    yield "traces", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    missing = f" of {found.world_size}" if found.missing_ranks else ""
    yield "ranks", f"{ranges(found.ranks)}{missing}" if found.ranks else ""
    yield "windows", ranges(sorted({t.window for t in found.traces if t.window is not None}))
    yield "copied", counted(done.copied.files, "file") if done.copied.files else ""
    yield "linked", f"{counted(done.copied.linked, 'file')}: the disk is full" if done.copied.linked else ""
    yield "links", ", ".join(done.links)
    yield "overhead", _overhead(done.overhead)
    yield "card", f"{counted(len(done.filled), 'field')} filled with what was observed" if done.filled else ""


def _overhead(measured: dict[str, float]) -> str:
    """Return how much longer steps were while they were recorded."""
    words = {"active": "under the profiler", "observed": "while observed"}
    return ", ".join(f"{share:+.0%} step time {words.get(name, name)}" for name, share in measured.items())


def _next_commands(done: Collected, *, has_numbers: bool) -> Iterator[str]:
    where = shlex.quote(str(done.output))
    if has_numbers:
        yield f"next: ccl-metrics --trace {where} --all"
    yield f"what cannot be measured, and why: ccl-bench inspect {where}"
