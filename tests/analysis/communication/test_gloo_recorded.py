"""A recording of gloo with several process groups: who sent to whom, which call was which, how much."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import gloo_groups as program
import polars as pl
import pytest
from cross_runs import codes, documents, results, tables
from recordings import recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLOAT = 4


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of four ranks, recorded by torch's profiler."""
    return recording(tmp_path_factory, "groups")


def events(folder: Path) -> Iterator[tuple[int, dict]]:
    """Yield rank and event of everything that took time."""
    for rank, trace in documents(folder).items():
        yield from ((rank, event) for event in trace["traceEvents"] if event.get("ph") == "X")


def test_messages_go_between_ranks_of_the_job_although_operators_name_places_in_a_group(recorded: Path):
    """The program sends down twice and up once a step, from rank r to rank r + 2 and back."""
    found = tables(recorded, "messages")["messages"]
    pairs = Counter(found.select("source", "target", "size_bytes").rows())
    down, up, steps = program.DOWN * FLOAT, program.UP * FLOAT, program.STEPS
    assert pairs == {
        (0, 2, down): 2 * steps,
        (1, 3, down): 2 * steps,
        (2, 0, up): steps,
        (3, 1, up): steps,
    }
    sends = Counter(rank for rank, event in events(recorded) if event["name"] == "c10d::send")
    assert Counter(source for source, *_ in pairs.elements()) == sends
    at_self = [(r, e) for r, e in events(recorded) if e["name"] == "c10d::send" and _peer(e) == r]
    assert at_self, "the trace must name places that would be the rank itself"
    assert not {"peers-unknown", "message-to-self", "messages-disagree"} & set(codes(recorded, "messages"))


def _peer(event: dict) -> int:
    return int(event["args"]["Concrete Inputs"][2])


def test_calls_of_two_groups_at_once_each_get_the_operator_that_started_them(recorded: Path):
    steps, large, small = program.STEPS, program.LARGE * FLOAT, program.SMALL * FLOAT
    scattered, half = program.SCATTERED * FLOAT, program.SCATTERED * FLOAT // 2
    expected = {
        ("all_reduce", large, large): steps,
        ("all_reduce", small, small): steps,
        ("all_gather", small, None): steps,
        ("reduce_scatter", scattered, half): steps,
    }
    found = tables(recorded, "calls")["calls"]
    for rank in range(program.RANKS):
        mine = found.filter(
            pl.col("rank") == rank, pl.col("collective").is_in(["all_reduce", "all_gather", "reduce_scatter"])
        )
        assert Counter(mine.select("collective", "sent_bytes", "received_bytes").rows()) == expected
    assert found["is_paired"].all()
    own = Counter(
        (rank, event["name"].removeprefix("gloo:"), event["args"]["Input Dims"][0][0] * FLOAT)
        for rank, event in events(recorded)
        if event["name"] in ("gloo:all_reduce", "gloo:all_gather")
    )
    carried_out = found.with_columns(pl.col("collective").replace("reduce_scatter", "all_reduce"))
    reported = carried_out.filter(pl.col("collective").is_in(["all_reduce", "all_gather"]))
    assert Counter(reported.select("rank", "collective", "sent_bytes").rows()) == own


def test_an_uneven_exchange_counts_the_larger_of_what_goes_to_and_comes_from_others(recorded: Path):
    rows, row = program.ROWS, program.WIDTH * FLOAT
    uneven = {}
    for rank in range(program.RANKS):
        sent = sum(rows[rank]) - rows[rank][rank]
        received = sum(other[rank] for other in rows) - rows[rank][rank]
        uneven[rank] = max(sent, received) * row
    assert uneven == {0: 24 * 16, 1: 24 * 16, 2: 48 * 16, 3: 48 * 16}
    even = program.RANKS * 8 * FLOAT
    found = tables(recorded, "traffic", "matched")
    exchanges = found["traffic"].filter(pl.col("collective") == "all_to_all")
    for rank, size in uneven.items():
        sizes = Counter(exchanges.filter(pl.col("rank") == rank).select("uneven", "size_bytes").rows())
        assert sizes == {(True, size): program.STEPS, (False, even): program.STEPS}
    reported = found["matched"].filter(pl.col("collective") == "all_to_all").select("own_sizes", "wait_ns")
    assert reported.filter("own_sizes")["wait_ns"].null_count() == program.STEPS * program.RANKS
    assert reported.filter(~pl.col("own_sizes"))["wait_ns"].null_count() == 0


def test_who_sends_rows_to_whom_is_what_the_program_sent(recorded: Path):
    found = tables(recorded, "traffic_matrix")["traffic_matrix"].filter(pl.col("kind") == "all_to_all")
    sent = {(a, b): size for a, b, size in found.select("source", "target", "bytes").iter_rows()}
    expected = {
        (a, b): program.STEPS * FLOAT * (program.ROWS[a][b] * program.WIDTH + 8)
        for a in range(program.RANKS)
        for b in range(program.RANKS)
        if a != b
    }
    assert sent == expected


def test_time_and_counts_are_of_the_same_collectives(recorded: Path):
    names = (
        "total_communication_time",
        "exposed_communication_time",
        "traffic_distribution_16",
        "coll_call_num",
    )
    found = results(recorded, *names)
    keys = ("per_collective_s", "per_collective_s", "per_collective_calls", "per_collective")
    times, exposed, calls, counts = (one.details[key] for one, key in zip(found, keys, strict=True))
    names = {"all_gather", "all_reduce", "all_to_all", "barrier", "recv", "reduce_scatter", "send"}
    assert set(times) == set(exposed) == set(calls) == set(counts) == names
