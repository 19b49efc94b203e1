"""Update the table of `docs/profilers.md`: which metric comes from which recording.

    python docs/source_table.py

Rows are the metrics and columns the formats that are registered. A cell is full if a recording
gives the metric from traces of this format; it is open if the format fills the tables of the
metric but no recording gives it. The recordings are the examples and those of `CCL_BENCH_CORPUS`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import ccl_bench as ccl
from ccl_bench import metrics
from ccl_bench.analysis.derived import DERIVED, raw_needs
from ccl_bench.base.errors import CclBenchError
from ccl_bench.schema import TABLES
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.metrics import Metric
    from ccl_bench.trace.formats import Format

HERE = Path(__file__).resolve().parent
PAGE = HERE / "profilers.md"
BEGIN, END = "<!-- made by docs/source_table.py -->\n", "<!-- end -->\n"
GIVEN, POSSIBLE, NOTHING = "●", "○", ""

SOURCES = {
    "Kineto": ("kineto",),
    "Nsight Systems": ("nsys",),
    "JAX, XLA": ("xplane",),
    "JAX viewer trace": ("jax_trace",),
    "rocprofv3": ("rocprof", "rocpd"),
    "Ascend": ("ascend",),
    "Execution Trace": ("execution_trace",),
    "Chakra": ("chakra",),
    "NCCL Inspector": ("nccl_inspector",),
    "Flight Recorder": ("flight_recorder",),
    "memory snapshot": ("memory_snapshot",),
    "serving benchmark": (
        *("aiperf", "genai_bench", "llmperf", "inference_perf", "guidellm", "sglang"),
        *("vllm", "vllm_latency", "vllm_throughput", "inferencex"),
    ),
}
"""Column → formats."""

BESIDE = frozenset({"launches", "annotations", "cpu_ops", "devices", "process_groups", "memcpy"})
"""Tables that make a number better, and without which there can be one."""


def recordings(corpus: Path, place: Path) -> Iterator[Path]:
    """Yield the runs to measure."""
    yield from sorted((HERE.parent / "examples" / "runs").iterdir())
    for part in ("kineto", "execution_trace", "xplane", "nsys", "serving", "flight-recorder"):
        yield from sorted(path for path in (corpus / part).iterdir() if path.is_dir())
    yield corpus / "memory"
    viewer = place / "viewer"
    viewer.mkdir()
    for process in (0, 1):
        trace = corpus / "xplane" / "cpu-2x2-gloo" / f"p{process}" / "vm.trace.json.gz"
        shutil.copyfile(trace, viewer / f"host{process}.trace.json.gz")
    yield viewer


def given_by(runs: Iterable[Path]) -> dict[str, set[str]]:
    """Return the trace formats behind the results of each metric."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in runs:
        try:
            results = ccl.open(path).results()
        except CclBenchError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        for result in results:
            if result.value is not None and result.provenance is not None:
                found[result.metric] |= {trace.format for trace in result.provenance.traces}
    return found


def has_tables(metric: Metric, form: Format) -> bool:
    """Whether a format fills the tables of one source of a metric, without those from side files."""
    ways = [raw_needs(way.needs) & {*TABLES} - {"identity", "marker"} for way in metric.sources]
    optional = {name for name in TABLES if name.startswith(("et_", "recorded_"))} | BESIDE
    kinds = [(raw - optional, raw) for raw in ways]
    return any(main <= form.tables and (main or raw <= form.tables) for main, raw in kinds if raw)


def row(metric: Metric, given: set[str]) -> list[str]:
    """Return the cells of a metric."""
    forms = {form.name: form for form in formats.load()}
    cells = []
    for names in SOURCES.values():
        possible = any(has_tables(metric, forms[name]) for name in names)
        cells.append(GIVEN if given.intersection(names) else POSSIBLE if possible else NOTHING)
    return cells


def source_table(given: dict[str, set[str]]) -> str:
    """Return the table: one row for each metric that traces give."""
    DERIVED.load()
    lines = ["| metric | " + " | ".join(SOURCES) + " |", "|---" * (len(SOURCES) + 1) + "|"]
    for metric in metrics.load():
        cells = row(metric, given.get(metric.name, set()))
        if any(cells):
            lines.append(f"| `{metric.name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page."""
    corpus = os.environ.get("CCL_BENCH_CORPUS")
    if not corpus:
        sys.exit("set CCL_BENCH_CORPUS to the folder of recordings")
    with tempfile.TemporaryDirectory() as place:
        os.environ["CCL_BENCH_CACHE"] = f"{place}/cache"
        table = source_table(given_by(recordings(Path(corpus), Path(place))))
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
