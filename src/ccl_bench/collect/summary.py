"""The summary that `ccl-bench collect` prints: contents of the run, measurable metrics, next command."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, plain
from ccl_bench.collect.profiling.recording import STEP_END
from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.report.formatting import ranges
from ccl_bench.report.inspection import issues
from ccl_bench.report.render.text import verdict_block
from ccl_bench.report.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ccl_bench.collect.collect_run import CollectedRun
    from ccl_bench.collect.launch.failures import Failure
    from ccl_bench.result.inspection import Inspection
    from ccl_bench.result.report_data import ReportData

_MEASURED = "ok"


def page(collected: CollectedRun, observed: ReportData) -> Group:
    """Return the page that `ccl-bench collect` prints at its end."""
    inspection = observed.inspection
    names, rows = measurable_metrics(inspection), _summary_rows(collected, inspection)
    lines: list[RenderableType] = [
        heading(plain(str(collected.output))),
        indented(aligned(("", ""), [(Text(name, "dim"), text) for name, text in rows if text])),
    ]
    if observed.diagnosed is not None:
        lines += [Text(), verdict_block(verdict(observed.diagnosed))]
    if inspection.issues:
        lines += [Text(), heading("Data quality"), indented(issues(inspection.issues))]
    title = f"Measurable: {len(names)} of {len(inspection.metrics)} metrics"
    lines += [Text(), heading(title), indented(Text(", ".join(names) or "none"))]
    lines.append(Text())
    where = shlex.quote(str(collected.output))
    if names:
        lines.append(Text(f"next: ccl-metrics {where} --all"))
        lines.append(Text(f"causes of lost time: ccl-bench diagnose {where}"))
    lines.append(Text(f"metrics without a value: ccl-bench inspect {where}"))
    return Group(*lines)


def measurable_metrics(inspection: Inspection) -> list[str]:
    """Return the metrics that have a value."""
    return [metric.metric for metric in inspection.metrics if metric.status == _MEASURED]


def failure_message(failure: Failure) -> str:
    """Return the message on a command that failed: how, why, its last lines and a fix."""
    lines = [f"the command {failure.outcome}"]
    if failure.cause:
        lines.append(f"  cause: {failure.cause}")
    lines += [f"  | {line}" for line in failure.lines]
    if failure.fix:
        lines.append(f"  fix: {failure.fix}")
    return "\n".join(lines)


def disk_error_message(collected: CollectedRun) -> str:
    """Return the message on a run directory that a disk error left incomplete."""
    where = shlex.quote(str(collected.output))
    return (
        f"{collected.output}: the run is incomplete: {collected.disk_error}; the recorded files are kept\n"
        f"  fix: free space there, then: ccl-bench collect --output {where}"
    )


def no_trace_message(collected: CollectedRun) -> str:
    """Return the message on a run without traces."""
    where = shlex.quote(str(collected.output))
    if collected.failure:
        problem = "holds no trace: the command ended before it wrote one"
        fix = "correct the failure and run it again, or gather what it wrote elsewhere:"
    else:
        problem = "holds no trace of a known format"
        fix = "switch on its profiler (docs/collecting.md), or give the folder that it writes to:"
        if collected.is_watched and not collected.step_end:
            problem += (
                "; the command never stepped an optimizer of PyTorch, and called no "
                "function of jax.jit twice\n"
                "  a loop without one, such as inference, is not recorded from outside"
            )
            fix = f"put ccl_bench.profile around the loop, {fix}"
    return f"{collected.output}: {problem}\n  fix: {fix} ccl-bench collect --output {where} --source FOLDER"


def _summary_rows(collected: CollectedRun, inspection: Inspection) -> Iterator[tuple[str, str]]:
    kinds = Counter(trace.format for trace in inspection.traces)
    yield "traces", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    missing = f" of {inspection.world_size}" if inspection.missing_ranks else ""
    yield "ranks", f"{ranges(inspection.ranks)}{missing}" if inspection.ranks else ""
    yield "windows", ranges(sorted({t.window for t in inspection.traces if t.window is not None}))
    copied, filled = collected.copied, collected.filled
    step_end = collected.step_end
    yield "steps", f"ccl-bench counted them: {step_end} ends one" if step_end and step_end != STEP_END else ""
    yield "copied", counted(copied.files, "file") if copied.files else ""
    yield "linked", f"{counted(copied.linked, 'file')}: the disk is full" if copied.linked else ""
    yield "links", ", ".join(collected.links)
    labels = {"active": "under the profiler", "observed": "while observed"}
    overhead = collected.overhead.items()
    yield (
        "overhead",
        ", ".join(f"{share:+.0%} step time {labels.get(name, name)}" for name, share in overhead),
    )
    yield "card", f"{counted(len(filled), 'field')} filled with what was observed" if filled else ""
