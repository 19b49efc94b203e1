"""Which calls of different ranks are one collective, and what is said where they do not fit."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cross_runs import results, rewrite, tables, tables_and_codes

from ccl_bench.testing import Expected, Experts, Message, Plan, Style, plans, trace_path, write_run

MESHES = {
    "tp x dp_replicate x dp_shard": Plan(dp_replicate=2, dp_shard=2, tp=2, steps=2, layers=1),
    "tp x pp x dp_shard": Plan(dp_shard=2, tp=2, pp=2, microbatches=2, steps=1, layers=1),
    "cp x ep": Plan(dp_shard=2, cp=2, ep=2, steps=1, layers=1, experts=Experts(((3, 5), (7, 1)))),
    "ep with equal parts": Plan(dp_shard=2, ep=2, steps=1, layers=1, experts=Experts(((4, 4), (4, 4)))),
    "all, and five of 32 ranks recorded": replace(
        plans.many_dimensions(), missing_ranks=frozenset(range(32)) - {0, 1, 2, 3, 16}
    ),
}


def collectives_of(expected: Expected) -> Counter[tuple[Any, ...]]:
    """Return the collectives of a plan that ranks with a file see: members, kind, transfer."""
    present = set(expected.plan.present_ranks)
    found: Counter[tuple[Any, ...]] = Counter()
    for operation in expected.operations:
        seen = tuple(sorted(operation.members.keys() & present))
        if operation.collective != "send_recv" and len(seen) > 1:
            transfer = expected.seen_transfer_ns(operation) if operation.is_symmetric else None
            found[seen, operation.collective.removesuffix("v"), operation.dimension, transfer] += 1
    return found


def collectives_in(table: pl.DataFrame) -> Counter[tuple[Any, ...]]:
    rows = table.group_by("group", "number", "iteration").agg(
        pl.col("rank").sort(), pl.col("collective", "dimension", "transfer_ns").first()
    )
    return Counter(
        (tuple(r["rank"]), r["collective"], r["dimension"], r["transfer_ns"]) for r in rows.to_dicts()
    )


@pytest.mark.parametrize("mesh", MESHES)
def test_every_collective_of_a_mesh_is_found_with_its_members_and_transfer(mesh: str, tmp_path: Path):
    expected = write_run(MESHES[mesh], tmp_path)
    assert collectives_in(tables(tmp_path, "matched")["matched"]) == collectives_of(expected)


@pytest.mark.parametrize(("pp", "missing"), [(1, {2}), (2, {2, 8, 9, 10, 11})])
def test_a_missing_rank_is_reported_and_nobody_is_renumbered(pp: int, missing: set[int], tmp_path: Path):
    plan = Plan(dp_shard=3, tp=2, pp=pp, microbatches=2, layers=1, steps=1, missing_ranks=frozenset(missing))
    expected = write_run(plan, tmp_path)
    made, said = tables_and_codes(tmp_path, "matched")
    found = made["matched"]
    assert collectives_in(found) == collectives_of(expected)
    # rank 3 is left alone in its tensor-parallel group and stays in its sharded one
    assert set(found["rank"]) == set(plan.present_ranks)
    assert {"ranks-missing", "members-missing"} <= set(said)


def test_a_list_of_members_that_was_cut_is_rebuilt_from_the_jobs_group_table(tmp_path: Path):
    plan = Plan(dp_shard=32, steps=1, layers=1, missing_ranks=frozenset(range(3, 32)))
    expected = write_run(plan, tmp_path)
    assert '31, ..."' not in trace_path(tmp_path, 0).read_text()
    assert '29, ...]"' in trace_path(tmp_path, 0).read_text()
    found = tables(tmp_path, "groups", "matched")
    [one] = found["groups"].rows(named=True)
    assert (one["members"], one["known_from"], one["seen_by"]) == (list(range(32)), "pg_config", 3)
    assert collectives_in(found["matched"]) == collectives_of(expected)


def without_group_table(trace: dict[str, Any]) -> None:
    trace["distributedInfo"].pop("pg_config")


def test_a_list_of_members_that_was_cut_is_rebuilt_from_start_and_stride(tmp_path: Path):
    expected = write_run(
        Plan(dp_shard=31, tp=2, steps=1, layers=1, missing_ranks=frozenset(range(4, 62))), tmp_path
    )
    for rank in range(4):
        rewrite(trace_path(tmp_path, rank), without_group_table)
    found = tables(tmp_path, "groups", "matched")
    members = {
        tuple(row["members"]): row["known_from"] for row in found["groups"].to_dicts() if row["size"] == 31
    }
    assert members == {tuple(range(0, 62, 2)): "stride", tuple(range(1, 62, 2)): "stride"}
    assert collectives_in(found["matched"]) == collectives_of(expected)


def test_a_cut_list_of_an_irregular_group_is_not_guessed(tmp_path: Path):
    write_run(Plan(dp_shard=31, tp=2, steps=1, layers=1, missing_ranks=frozenset(range(4, 62))), tmp_path)

    def irregular(trace: dict[str, Any]) -> None:
        without_group_table(trace)
        for event in trace["traceEvents"]:
            if "Global rank stride" in (arguments := event.get("args", {})):
                arguments["Global rank stride"] = arguments["Global rank start"] = -1

    for rank in range(4):
        rewrite(trace_path(tmp_path, rank), irregular)
    rows = tables(tmp_path, "groups")["groups"].filter(pl.col("size") == 31).rows(named=True)
    assert {(row["members"], row["known_from"]) for row in rows} == {(None, "name")}


def test_calls_of_old_traces_are_matched_by_order(tmp_path: Path):
    expected = write_run(
        Plan(dp_shard=4, steps=2, layers=2), tmp_path, style=Style(has_collective_arguments=False)
    )
    found = tables(tmp_path, "matched", "waits")
    counted = Counter(
        (members, kind, transfer) for members, kind, _, transfer in collectives_of(expected).elements()
    )
    assert Counter((m, k, t) for m, k, _, t in collectives_in(found["matched"]).elements()) == counted
    for row in found["waits"].iter_rows(named=True):
        assert row["wait_ns"] == expected.wait_ns(row["rank"], row["step"])


def test_old_traces_of_a_mesh_do_not_show_groups_apart_and_are_not_matched(tmp_path: Path):
    write_run(Plan(dp_shard=2, tp=2, steps=1), tmp_path, style=Style(has_collective_arguments=False))
    found, said = tables_and_codes(tmp_path, "groups", "matched")
    assert found["groups"]["ambiguous"].all()
    assert found["matched"].is_empty()
    assert "groups-ambiguous" in said


def test_part_of_the_ranks_does_not_make_groups_of_equal_size_one_group(tmp_path: Path):
    plan = Plan(dp_shard=4, tp=2, steps=1, layers=1, missing_ranks=frozenset({2, 3, 4, 5, 6, 7}))
    write_run(plan, tmp_path, style=Style(has_collective_arguments=False))
    found = tables(tmp_path, "groups", "matched")
    assert dict(found["groups"].select("size", "ambiguous").iter_rows()) == {4: True, 2: True}
    assert found["matched"].is_empty()


def spoiled(trace: dict[str, Any], change: dict[str, Any], name: str, which: int) -> None:
    """Change the arguments of the n-th call of a kind, in the kernel and in its operator."""
    for category in ("kernel", "cpu_op"):
        events = [
            e
            for e in trace["traceEvents"]
            if e.get("cat") == category and "Collective name" in e.get("args", {})
        ]
        chosen = [e for e in sorted(events, key=lambda e: e["ts"]) if e["args"]["Collective name"] == name]
        chosen[which]["args"].update(change)


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({"Collective name": "allreduce"}, {"collectives-disagree", "names-contradict"}),
        ({"In msg nelems": 5, "Out msg nelems": 10}, {"collectives-disagree"}),
    ],
    ids=["name", "size"],
)
def test_ranks_that_contradict_each_other_are_a_finding_and_show_no_wait(
    change: dict[str, Any], codes: set[str], tmp_path: Path
):
    expected = write_run(Plan(dp_shard=2, steps=1, layers=3, prefetch=False), tmp_path)
    rewrite(trace_path(tmp_path, 1), lambda trace: spoiled(trace, change, "_allgather_base", 1))
    made, said = tables_and_codes(tmp_path, "matched")
    found = made["matched"]
    odd = found.filter(~pl.col("agrees"))
    assert (odd.height, odd["wait_ns"].null_count(), odd["transfer_ns"].null_count()) == (2, 2, 2)
    assert found.filter("agrees")["wait_ns"].null_count() == 0
    assert found.height == 2 * len(expected.operations)
    assert {*said} == codes


def test_a_contradiction_is_attached_to_the_numbers_it_touches(tmp_path: Path):
    write_run(Plan(dp_shard=2, steps=1, layers=3), tmp_path)
    rewrite(
        trace_path(tmp_path, 1),
        lambda trace: spoiled(trace, {"Collective name": "allreduce"}, "_allgather_base", 1),
    )
    late, busy = results(tmp_path, "straggler", "gpu_busy")
    assert {finding.code for finding in late.findings} == {"collectives-disagree", "names-contradict"}
    assert busy.findings == []


def test_a_hand_written_coalesced_call_has_neither_size_nor_bandwidth(tmp_path: Path):
    for rank in (0, 1):
        events = [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": "ProfilerStep#1",
                "pid": 1,
                "tid": 1,
                "ts": 0,
                "dur": 100,
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                "pid": 0,
                "tid": 7,
                "ts": 10 + rank,
                "dur": 30 - rank,
                "args": {
                    "stream": 7,
                    "correlation": 1,
                    "device": 0,
                    "Collective name": "nccl:coalesced",
                    "Group size": 2,
                    "Process Group Ranks": "[0, 1]",
                    "Process Group Name": "0",
                    "Process Group Description": "default_pg",
                    "dtype": "Float",
                },
            },
        ]
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        (tmp_path / f"rank{rank}_trace.json").write_text(
            json.dumps({"distributedInfo": info, "traceEvents": events})
        )
    found = tables(tmp_path, "matched", "traffic", "transfers")
    assert found["matched"].select("collective", "wait_ns").unique().rows() == [("coalesced", None)]
    assert found["traffic"]["size_bytes"].to_list() == [None, None]
    assert found["transfers"].is_empty()


def test_gradient_norm_over_all_ranks_is_one_group(tmp_path: Path):
    write_run(Plan(tp=2, pp=2, steps=1, layers=1, gradient_norm=Message(1, 500, "Float")), tmp_path)
    rows = tables(tmp_path, "groups")["groups"].filter(pl.col("dimension") == "world").rows(named=True)
    assert [row["members"] for row in rows] == [[0, 1, 2, 3]]
