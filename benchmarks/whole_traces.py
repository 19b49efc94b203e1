"""Measure whole programs on one real trace, cold: every metric beside HTA, a report beside TraceLens."""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import commands
from commands import Timed
from printing import MEGA, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRACES = {
    "A100, NCCL": "kineto/nccl-args/rank0.nccl_data.json.gz",
    "MI300": "conclusions/resnet-backlog/rank0_trace.json.gz",
    "MI300, with a loader": "conclusions/resnet-loader/rank0_trace.json.gz",
    "V100, old profiler": "conclusions/old-loader/worker0.1623143089861.pt.trace.json.gz",
}
"""Name → a trace of the corpus, of 10 to 35 MB."""

METRICS, HTA = "every metric, by ccl-bench", "four analyses, by HTA"
REPORT, TRACELENS = "report, by ccl-bench", "report, by TraceLens"

_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
run = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
run.get_temporal_breakdown(visualize=False)
run.get_comm_comp_overlap(visualize=False)
run.get_gpu_kernel_breakdown(visualize=False)
run.get_idle_time_breakdown(ranks=[0], visualize=False)
"""

_TRACELENS = "TraceLens_generate_perf_report_pytorch"
"""The command that its package installs."""


def traces(corpus: Path, folder: Path) -> dict[str, Path]:
    """Return the real traces, unpacked into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    unpacked = {}
    for name, place in TRACES.items():
        unpacked[name] = folder / f"{name.replace(', ', '-').replace(' ', '-')}.json"
        if not unpacked[name].exists():
            unpacked[name].write_bytes(gzip.decompress((corpus / place).read_bytes()))
    return unpacked


def compared(file: Path, peer: Path, rounds: int) -> dict[str, Timed]:
    """Return the cost of each program on one trace, with nothing kept; they alternate.

    A program that fails is left out. `peer` is the Python that has the programs compared with.
    """
    costs = {name: Timed(name) for name in (METRICS, HTA, REPORT, TRACELENS)}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            page, sheets = str(Path(folder, "report.html")), str(Path(folder, "sheets"))
            entering: dict[str, Sequence[str]] = {
                METRICS: [str(commands.PROGRAMS / "ccl-metrics"), str(file), "--all"],
                HTA: [str(peer), "-c", _HTA, str(file)],
                REPORT: [str(commands.PROGRAMS / "ccl-bench"), "report", str(file), "--output", page],
                TRACELENS: [
                    str(peer.with_name(_TRACELENS)),
                    *("--profile_json_path", str(file), "--output_csvs_dir", sheets),
                ],
            }
            for number, (name, command) in enumerate(entering.items()):
                if name in costs:
                    try:
                        commands.measure(costs[name], command, Path(folder, str(number)))
                    except (RuntimeError, FileNotFoundError) as error:
                        print(f"{name} failed: {str(error).splitlines()[-1]}", file=sys.stderr)
                        del costs[name]
    return costs


def table(file: Path, name: str, costs: Mapping[str, Timed]) -> str:
    """Return the costs of one trace as text."""
    rows = [("", "wall s", "CPU s", "peak MB")]
    rows += [
        (what, f"{timed.wall_s:.2f}", f"{timed.cpu_s:.2f}", f"{timed.peak_bytes / MEGA:.0f}")
        for what, timed in costs.items()
    ]
    title = f"{name}, {file.stat().st_size / MEGA:.0f} MB of JSON, cold: whole processes"
    return f"{title}\n{aligned(rows)}"
