"""Whose waits count, on tables small enough to follow by hand."""

from __future__ import annotations

import polars as pl

from ccl_bench.analysis.communication.stragglers import attributable_waits, waits


def matched(collectives: dict[int, dict[int, int]], lacks: dict[int, int]) -> pl.DataFrame:
    """Return one step of one group, from number -> rank -> wait, and what each rank's trace lacks."""
    cells = [
        (number, rank, wait) for number, by_rank in collectives.items() for rank, wait in by_rank.items()
    ]
    numbers, ranks, waited = zip(*cells, strict=True)
    count = len(cells)
    return pl.DataFrame(
        {
            "iteration": [None] * count,
            "group": ["g"] * count,
            "dimension": [None] * count,
            "number": numbers,
            "step": [1] * count,
            "trace": ranks,
            "rank": ranks,
            "wait_ns": waited,
            "present": [len(collectives[number]) for number in numbers],
            "size": [4] * count,
            "lacks": [lacks[rank] for rank in ranks],
            "gaps": [sum(lacks.values())] * count,
            "complete": [True] * count,
        },
        schema_overrides={"iteration": pl.Int64, "dimension": pl.String},
    )


def by_rank(table: pl.DataFrame) -> dict[int, tuple[int, ...]]:
    """Return rank -> (collectives, wait, arrived last, caused)."""
    columns = ("rank", "collectives", "wait_ns", "arrived_last", "caused_ns")
    return {rank: tuple(rest) for rank, *rest in table.select(columns).iter_rows()}


def test_the_last_rank_causes_the_longest_wait_of_another_and_a_tie_has_no_last() -> None:
    found = waits(
        matched({1: {0: 0, 1: 5, 2: 7, 3: 7}, 2: {0: 0, 1: 0, 2: 3, 3: 4}}, dict.fromkeys(range(4), 0))
    )
    assert by_rank(found) == {0: (2, 0, 1, 7), 1: (2, 5, 0, 0), 2: (2, 10, 0, 0), 3: (2, 11, 0, 0)}
    assert found["complete"].to_list() == [True] * 4


def test_where_no_step_is_whole_only_collectives_of_all_the_traces_left_count() -> None:
    # 101 collectives. Rank 2 lacks one of them, 1 % of its other 100; rank 3 broke off after 40 and lacks 61.
    # It was last wherever it took part: without it, the waits are those beyond the next shortest.
    whole = {number: {0: 10, 1: 15, 2: 20} for number in range(101)}
    collectives = {n: row | ({3: 0} if n < 40 else {}) for n, row in whole.items()}
    del collectives[50][2]
    table = matched(collectives, {0: 0, 1: 0, 2: 1, 3: 61})

    assert 50 not in attributable_waits(table)["number"]
    found = waits(table)
    assert by_rank(found) == {
        0: (100, 0, 100, 100 * 10),
        1: (100, 100 * 5, 0, 0),
        2: (100, 100 * 10, 0, 0),
    }
    assert found["complete"].to_list() == [False] * 3


def test_a_trace_that_lacks_more_than_a_hundredth_is_left_out() -> None:
    # Rank 2 lacks 2 of 101 and has 99, of which 1 % is 0.99. The collectives of the other two count.
    collectives = {number: {0: 0, 1: 5, 2: 9} for number in range(101)}
    del collectives[50][2], collectives[51][2]
    found = waits(matched(collectives, {0: 0, 1: 0, 2: 2}))
    assert by_rank(found) == {0: (101, 0, 101, 101 * 5), 1: (101, 101 * 5, 0, 0)}
