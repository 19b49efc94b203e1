"""When ranks can be put on one clock, and what is said when they cannot."""

from __future__ import annotations

import polars as pl
import pytest

from ccl_bench.analysis.communication.clocks import clocks_of

MS = 1_000_000


def contents(*spans: tuple[int, int, int], iteration: int | None = None) -> pl.DataFrame:
    """Return traces from (rank, start, end)."""
    rows = [
        {"trace": n, "rank": rank, "iteration": iteration, "start_ns": start, "end_ns": end}
        for n, (rank, start, end) in enumerate(spans)
    ]
    schema = dict.fromkeys(("trace", "rank", "iteration", "start_ns", "end_ns"), pl.Int64)
    return pl.DataFrame(rows, schema=schema)


def offsets(*rows: tuple[int, int, int, int]) -> pl.DataFrame:
    """Return clocks from (rank, offset, residual, island)."""
    schema = dict.fromkeys(("iteration", "rank", "offset_ns", "residual_ns", "ends", "island"), pl.Int64)
    found = [(None, rank, offset, residual, 9, island) for rank, offset, residual, island in rows]
    return pl.DataFrame(found, schema=schema, orient="row")


def test_ranks_that_collectives_join_are_aligned() -> None:
    found = clocks_of(contents((0, 0, 9), (1, 2, 9)), offsets((0, -4 * MS, 10, 0), (1, 3 * MS, 2500, 0)))
    assert (found.kind, dict(found.offsets_ns)) == ("aligned", {0: -4 * MS, 1: 3 * MS})
    assert "with shifts up to 4 ms" in found.statement
    assert "within 2.5 us" in found.statement


def test_groups_that_nothing_joins_stay_as_recorded() -> None:
    spans = contents((0, 0, 9), (1, 2, 9))
    found = clocks_of(spans, offsets((0, 0, 1, 0), (1, 0, 1, 1)))
    assert found.kind == "as recorded"
    assert "not aligned" in found.statement


def test_a_rank_without_collectives_stays_as_recorded() -> None:
    found = clocks_of(contents((0, 0, 9), (1, 2, 9)), offsets((0, 7, 1, 0)))
    assert (found.kind, dict(found.offsets_ns)) == ("as recorded", {0: 7, 1: 0})


def test_clocks_of_different_days_each_begin_at_0() -> None:
    found = clocks_of(contents((0, 100, 200), (1, 10**15, 10**15 + 100)), offsets())
    assert (found.kind, dict(found.offsets_ns)) == ("separate", {0: 100, 1: 10**15})
    assert "each begins at 0" in found.statement


def test_one_trace_has_one_clock() -> None:
    assert clocks_of(contents((0, 0, 9)), offsets()).kind == "single"


def test_times_are_shifted_by_trace() -> None:
    found = clocks_of(contents((0, 100, 200), (1, 10**15, 10**15 + 100)), offsets())
    shifted = found.applied(pl.DataFrame({"trace": [1, 0], "start_ns": [10**15 + 7, 101], "step": [1, 1]}))
    assert shifted["start_ns"].to_list() == [7, 1]
    assert shifted["step"].to_list() == [1, 1]


@pytest.mark.parametrize(
    ("islands", "begins", "kind"),
    [
        ((3, 3), 200, "aligned"),
        ((3, 4), 200, "as recorded"),
        ((None, None), 200, "as recorded"),
        ((3, None), 200, "as recorded"),
        ((3, 4), 250, "separate"),  # when the other trace of the window ends
    ],
)
def test_collectives_must_join_the_ranks_of_every_window(
    islands: tuple[int | None, ...], begins: int, kind: str
) -> None:
    spans = contents((0, 0, 9), (1, 2, 9), (0, 190, 250), (1, begins, 300)).with_columns(
        iteration=pl.Series([10, 10, 20, 20])
    )
    rows = [(10, 0, 5, 1, 9, 0), (10, 1, -5, 1, 9, 0)]
    rows += [(20, rank, 5, 1, 9, island) for rank, island in enumerate(islands) if island is not None]
    joined = pl.DataFrame(rows, schema=offsets().schema, orient="row")
    assert clocks_of(spans, joined).kind == kind
