"""What the library makes of recorded runs, which nobody changes: each is read once a process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.evaluate.compute import evaluate_metrics
from ccl_bench.evaluate.load import load_tables, needed_inputs
from ccl_bench.run import open_run
from ccl_bench.trace.formats.kineto.reader import read_kineto

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from ccl_bench.result import Result
    from ccl_bench.trace.content import TraceContent

_TABLES = (
    "breakdown",
    "clock_offsets",
    "copies",
    "copy_time",
    "fsdp",
    "groups",
    "idle",
    "kernel_time",
    "launching",
    "matched",
    "messages",
    "origins",
    "phases",
    "steps",
    "traffic",
    "waits",
)

_METRICS = (
    "bubble_size_pipeline",
    "communication_fraction",
    "exposed_communication_time",
    "straggler",
    "straggler_lag_16",
    "total_communication_time",
    "traffic_distribution",
)


@cache
def content_of(path: Path) -> TraceContent:
    """Return the content of a Kineto trace."""
    with storage.open_file(path) as stream:
        return read_kineto(stream, path.name)


def tables_of(run: Path) -> dict[str, pl.DataFrame]:
    """Return the tables that tests look at, by name."""
    return _measured(run)[0]


def results_of(run: Path) -> dict[str, Result]:
    """Return the metrics that tests look at, by name."""
    return _measured(run)[1]


@cache
def _measured(run: Path) -> tuple[dict[str, pl.DataFrame], dict[str, Result]]:
    opened = open_run(run)
    wanted = [*needed_inputs(opened, _METRICS), *_TABLES]
    loaded = load_tables(opened, wanted, jobs=1, use_cache=False)
    results = evaluate_metrics(opened.facts, _METRICS, loaded)
    return loaded.inputs, {found.metric: found for found in results}
