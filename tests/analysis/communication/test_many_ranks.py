"""Analysis across ranks takes time in proportion to the ranks, shown on tables in memory."""

import time
from typing import Any

import polars as pl
import pytest
from cross_runs import facts, frame

from ccl_bench.analysis.derived import DERIVED

CALLS, MEMBERS = 12, 8
TABLES = ("groups", "matched", "waits", "clock_offsets", "arrivals", "traffic", "messages", "transfers")


def made(ranks: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return calls and groups: each rank in a group of its eight, one across eights, and that of all."""
    calls: list[dict[str, Any]] = []
    groups: dict[str, list[int]] = {}
    for rank in range(ranks):
        inner, outer = rank // MEMBERS, rank % MEMBERS
        named = {
            f"mesh_tp {inner}": list(range(inner * MEMBERS, (inner + 1) * MEMBERS)),
            f"mesh_dp_shard {outer}": list(range(outer, ranks, MEMBERS)),
            "default_pg": list(range(ranks)),
        }
        groups |= named
        for number in range(CALLS):
            group = [*named][number % 3]
            end = 1_000_000 * (number + 1)
            calls.append(
                {
                    "trace": rank,
                    "rank": rank,
                    "call": number,
                    "order": number // 3 + 1,
                    "step": 1,
                    "group": group,
                    "start_ns": end - 1000 - (rank * 7919 + number) % 500,
                    "end_ns": end,
                    "collective": "all_reduce",
                    "size_bytes": 8,
                    "own_sizes": False,
                    "uneven": False,
                }
            )
    seen = [
        {
            "group": name,
            "members": ranks_,
            "size": len(ranks_),
            "known_from": "recorded",
            "description": name.split()[0],
            "trace": rank,
            "rank": rank,
        }
        for name, ranks_ in groups.items()
        for rank in ranks_[:2]
    ]
    return frame("calls", calls), frame("call_groups", seen)


def computed(ranks: int) -> tuple[dict[str, pl.DataFrame], float]:
    """Return the tables across ranks and the processor time that they took, s."""
    calls, groups = made(ranks)
    known: dict[str, Any] = {
        "calls": calls,
        "known_calls": calls,
        "call_groups": groups,
        "facts": facts(world_size=ranks, devices_per_node=8),
    }
    begun = time.process_time()
    for name in TABLES:
        derived = DERIVED.get(name)
        known[name] = derived.compute(*(known[need] for need in derived.needs))
    return known, time.process_time() - begun


def test_1024_ranks_take_no_more_than_in_proportion_to_256():
    computed(16)
    small = min(computed(256)[1] for _ in range(2))
    found, large = computed(1024)
    assert found["matched"].height == 1024 * CALLS
    assert large < 4 * small * 2 + 0.5
    assert large < 10


def test_waits_of_1024_ranks_are_those_of_a_plain_count():
    found, _ = computed(1024)
    calls = found["calls"].rows(named=True)
    lengths: dict[tuple[str, int], dict[int, int]] = {}
    for row in calls:
        lengths.setdefault((row["group"], row["order"]), {})[row["rank"]] = row["end_ns"] - row["start_ns"]
    waits = dict.fromkeys(range(1024), 0)
    for members in lengths.values():
        for rank, length in members.items():
            waits[rank] += length - min(members.values())
    reported = found["waits"].group_by("rank").agg(pl.col("wait_ns").sum())
    assert dict(reported.iter_rows()) == waits
    assert found["clock_offsets"].select(pl.col("offset_ns").abs().max(), pl.col("residual_ns").max()).row(
        0
    ) == (0, 0)


@pytest.mark.parametrize("ranks", [64])
def test_every_rank_is_on_one_island(ranks: int):
    assert computed(ranks)[0]["clock_offsets"]["island"].unique().to_list() == [0]
