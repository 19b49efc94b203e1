"""Rows of the index for what others reported: one for each configuration and load, repeats as its spread."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ccl_bench.base.lazy_imports import pl
from ccl_bench.card.comparison_fields import unknown_fields
from ccl_bench.leaderboard.reported.observations import FIELDS, NUMBER
from ccl_bench.leaderboard.store.board_numbers import DERIVED, LITTLE, board_numbers, derive
from ccl_bench.leaderboard.store.rows import (
    described_row,
    interactivity_of,
    placed_value,
    single_line,
    workload_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.card.comparison_fields import Plain
    from ccl_bench.leaderboard.reported.observations import Reported, Source
    from ccl_bench.leaderboard.store.rows import Row

STATE = "reported"
"""State of every such row: it has no files here, and nobody recomputed its numbers."""

_LOAD = "data.serving.max_concurrency"


def reported_rows(reported: Reported) -> Iterator[tuple[Row, Row, list[Row]]]:
    """Yield workload, run and numbers of each configuration and load.

    Repeats are observations that agree in all that the source states; a number is their median, with the
    smallest and largest. A point of a sweep has no rank of its own: only a whole curve, or points at one
    objective, can be compared.
    """
    source = reported.source
    numbers = [column for column in reported.rows.columns if column.startswith(NUMBER)]
    # A source that collects several dumps lists one measurement more than once, with every digit the same.
    measurements = reported.rows.unique(["variant", *FIELDS, *numbers], keep="first", maintain_order=True)
    grouped = measurements.group_by(["variant", *FIELDS], maintain_order=True).agg(
        pl.col("row").first(),
        pl.col("measured_at").max(),
        pl.len().alias("repeats"),
        *(pl.col(name).median().alias(name) for name in numbers),
        *(pl.col(name).min().alias(f"low {name}") for name in numbers),
        *(pl.col(name).max().alias(f"high {name}") for name in numbers),
        *(pl.col(name).count().alias(f"count {name}") for name in numbers),
    )
    for row in grouped.iter_rows(named=True):
        fields = {name: row[name] for name in FIELDS if row[name] is not None}
        of_workload = {name: value for name, value in fields.items() if name != _LOAD}
        workload = _workload(tuple(of_workload.items()))
        key = [source.name, row["variant"], fields]
        run: Row = {
            "id": hashlib.sha256(json.dumps(key).encode()).hexdigest(),
            "state": STATE,
            "is_listed": 1,
            "submitted_at": f"{row['measured_at'] or source.date}T00:00:00Z",
            "submitter": single_line(source.title),
            "superseded_by": None,
            "workload": workload["key"],
            "is_rankable": int(_LOAD not in fields and not unknown_fields(fields)),
            "name": single_line(row["row"]),
            "tool_version": "",
            "trace_url": None,
            "has_report": 0,
            "signed_by": None,
            "history_stamp": "",
            "source": source.name,
            "variant": single_line(row["variant"]),
            "curve": hashlib.sha256(
                json.dumps([source.name, row["variant"], of_workload]).encode()
            ).hexdigest()[:32],
        }
        run |= described_row(fields, [source.title, row["variant"], row["row"], run["id"]])
        values = list(_values(source, run, row))
        run["interactivity"] = interactivity_of(values)
        yield workload, run, values


@lru_cache(maxsize=1000)
def _workload(fields: tuple[tuple[str, Plain], ...]) -> Row:
    """Return the row of a workload; all points of a sweep share it."""
    return workload_row(dict(fields))


def _values(source: Source, run: Row, row: dict[str, Any]) -> Iterator[Row]:
    by_metric: dict[str, float] = {}
    for name, number in source.numbers.items():
        value, metric = row.get(f"{NUMBER}{name}"), source.metric(name)
        # Files of two kinds may report one metric of one configuration: the first kind counts.
        if value is not None and metric not in by_metric:
            by_metric[metric] = value
            spread = {
                "low": row[f"low {NUMBER}{name}"],
                "high": row[f"high {NUMBER}{name}"],
                "repeats": row[f"count {NUMBER}{name}"],
            }
            yield (
                _value(run, metric, value, number.unit, number.better, f"as {source.title} reports it")
                | spread
            )
    for name, value, sources in derive(run, by_metric):
        definition = board_numbers()[name]
        yield _value(
            run,
            name,
            value,
            definition["unit"],
            definition["better"],
            DERIVED if sources == LITTLE else f"from {source.title}",
        )


def _value(run: Row, metric: str, value: float, unit: str, better: str, measured: str) -> Row:
    return placed_value(
        run, {"run": run["id"], "value": value, **_of_every_row(metric, unit, better, measured)}
    )


@lru_cache(maxsize=1000)
def _of_every_row(metric: str, unit: str, better: str, measured: str) -> Row:
    """Return what the numbers of a metric have in common on all rows of a source."""
    return {
        "metric": single_line(metric, 100),
        "unit": single_line(unit),
        "better": better,
        "revision": 0,
        "measured": single_line(measured),
        "errors": 0,
        "doubts": 0,
        "low": None,
        "high": None,
        "repeats": None,
    }
