"""Results of serving benchmarks as their tools write them, measured here and described by a workload card."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccl_bench.base.errors import CclBenchError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.card.comparison_fields import fields_of
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.load import load_tables
from ccl_bench.leaderboard.reported.observations import FIELDS
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.reported.observations import SourceRows

MEASURED = (
    "TTFT",
    "TPOT",
    "ITL",
    "request_latency",
    "output_throughput",
    "total_token_throughput",
    "request_throughput",
)
"""Metrics of a result that a row has."""


def add_result(observations: SourceRows, path: Path, name: str, card: Path | None) -> None:
    """Add the numbers of one result file; what its card does not describe is a mistake."""
    try:
        run = open_run(path, card=card)
        results = evaluate(run, list(MEASURED))
        stored = load_tables(run, ["serving_statistics"]).inputs["serving_statistics"]
        fields = {
            key: value for key, value in fields_of(run.documents.card, run.facts).items() if key in FIELDS
        }
    except CclBenchError as error:
        observations.leave_out(name, error)
        return
    loads = dict(stored.filter(pl.col("statistic") == "total").select("quantity", "value").iter_rows())
    concurrency, rate = loads.get("concurrency"), loads.get("request_rate")
    observations.add(
        name,
        name,
        {"model.phase": "inference"}
        | fields
        | ({"data.serving.max_concurrency": int(concurrency)} if concurrency else {}),
        {each.metric: each.value for each in results if each.value is not None},
        variant=f"{rate:g} requests/s" if rate and math.isfinite(rate) and not concurrency else "",
    )
