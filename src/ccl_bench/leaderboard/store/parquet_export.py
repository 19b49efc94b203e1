"""The runs of an answer as Parquet: the columns of the CSV with types, written a group of rows at a time."""

from __future__ import annotations

from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import polars as pl
from polars.io.plugins import register_io_source

from ccl_bench.leaderboard.store.columns import EXPORT_FIELDS
from ccl_bench.leaderboard.store.query_result import iterate_runs
from ccl_bench.leaderboard.store.tables import RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Engine

    from ccl_bench.leaderboard.store.query import RunQuery
    from ccl_bench.leaderboard.store.query_result import ListedRun

ROWS_OF_GROUP = 2_000
"""Rows that are in memory together: about 50 MB with 60 metrics."""


def write_parquet(engine: Engine, query: RunQuery, metrics: Sequence[str], target: IO[bytes]) -> None:
    """Write every run that matches a query, with the value, rank and ranked count of some metrics."""
    columns = parquet_columns(metrics)

    def groups(*_: object) -> Iterator[pl.DataFrame]:
        rows = (_row(listed, metrics) for listed in iterate_runs(engine, query))
        while group := list(islice(rows, ROWS_OF_GROUP)):
            yield pl.DataFrame(group, schema=columns, orient="row")

    register_io_source(groups, schema=columns).sink_parquet(target, row_group_size=ROWS_OF_GROUP)


def parquet_columns(metrics: Sequence[str]) -> dict[str, pl.DataType]:
    """Return the columns and their types.

    Names are unique in a Parquet file, but a stranger may name a metric like a column: such a name is
    followed by `_`.
    """
    columns: dict[str, pl.DataType] = {
        name: pl.Int64() if RUNS.c[name].type.python_type is int else pl.String() for name in EXPORT_FIELDS
    }
    for metric in metrics:
        for name, kind in (
            (metric, pl.Float64()),
            (f"{metric} rank", pl.Int64()),
            (f"{metric} ranked", pl.Int64()),
        ):
            free_name = name
            while free_name in columns:
                free_name += "_"
            columns[free_name] = kind
    return columns


def _row(listed: ListedRun, metrics: Sequence[str]) -> list[Any]:
    row = [listed.run[name] for name in EXPORT_FIELDS]
    for metric in metrics:
        number = listed.numbers.get(metric)
        row += [number.value, number.place, number.ranked] if number else [None, None, None]
    return row
