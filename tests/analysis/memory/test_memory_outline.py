"""Outlines of a device's memory: at most 500 points, of equally many states each."""

from __future__ import annotations

import polars as pl
import pytest

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.memory.timeline import POINTS

DERIVED.load()


def timeline(states: int, device: int = 0) -> pl.DataFrame:
    """Return states in which 0, 1, 2, ... bytes are allocated, and ten more are reserved."""
    order = range(-1, states - 1)
    values = pl.Series(range(states), dtype=pl.Int64)
    return pl.DataFrame(
        {"device": device, "order": order, "time_ns": [None if n < 0 else 100 + n for n in order]},
        schema_overrides={"device": pl.Int64, "order": pl.Int64, "time_ns": pl.Int64},
    ).with_columns(allocated_bytes=values, reserved_bytes=values + 10)


@pytest.mark.parametrize(
    ("states", "each", "points"),
    [(1, 1, 1), (500, 1, 500), (501, 2, 251), (1000, 2, 500), (1001, 3, 334)],
)
def test_an_outline_has_at_most_500_points(states: int, each: int, points: int) -> None:
    assert POINTS == 500
    found = DERIVED.get("memory_outline").compute(timeline(states).reverse())
    assert (found["events"][0], found.height) == (each, points)
    assert found["events"].sum() == states
    assert found["point"].to_list() == [*range(points)]
    assert found["order"].to_list() == [each * place - 1 for place in range(points)]
    assert found["lowest_allocated_bytes"].to_list() == [each * place for place in range(points)]
    highest = [min(each * (place + 1), states) - 1 for place in range(points)]
    assert found["highest_allocated_bytes"].to_list() == highest
    assert found["highest_reserved_bytes"].to_list() == [10 + value for value in highest]


def test_categories_are_those_at_the_end_of_each_point() -> None:
    changes = pl.DataFrame(
        {"device": 0, "category": ["a", "a", "b"], "order": [-1, 2, 400], "allocated_bytes": [5, 7, 9]},
        schema_overrides={"device": pl.Int64, "order": pl.Int64},
    )
    found = DERIVED.get("category_outline").compute(changes, timeline(501))
    by_name = {
        name: rows.sort("point") for (name,), rows in found.partition_by("category", as_dict=True).items()
    }
    # two states a point: the first ends with order 0, the second with order 2
    assert by_name["a"]["allocated_bytes"].to_list() == [5] + [7] * 250
    assert by_name["a"]["order"].to_list() == [2 * place for place in range(250)] + [499]
    assert by_name["b"]["allocated_bytes"].to_list() == [0] * 200 + [9] * 51
