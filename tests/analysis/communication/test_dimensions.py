"""Which parallelism dimension a process group serves: by its description, by its ranks, or not known."""

from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cross_runs import codes, facts, rewrite, tables

from ccl_bench.analysis.communication.groups import (
    contradicts_mesh,
    dimension_of,
    members_text,
    spans_nodes,
    stages_of,
)
from ccl_bench.analysis.communication.traffic import axis_between
from ccl_bench.catalog.collectives import described_dimension, mesh_order
from ccl_bench.testing import Experts, Message, Plan, trace_path, write_run

DESCRIBED = {
    "mesh_tp": "tp",
    "mesh_dp_shard": "dp_shard",
    "mesh_dp_shard_cp": "dp_shard",
    "mesh_fsdp": "dp_shard",
    "mesh_dp_replicate": "dp_replicate",
    "mesh_pp": "pp",
    "pp": "pp",
    "mesh_cp": "cp",
    "mesh_ep": "ep",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EMBEDDING_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "DATA_PARALLEL_GROUP": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "dp",
    "tp:0": "tp",
    "mesh_dp_cp": "dp",
    "mesh_efsdp": "dp_shard",
    "default_pg": None,
    "undefined": None,
    "": None,
    "MODEL_PARALLEL_GROUP": None,
    "my_tp_like_group": None,
    "tp:device": "tp",
    "attention_tp:cpu": "tp",
    "moe_tp:device": "tp",
    "moe_ep:device": "ep",
    "moe_dp:device": "dp",
    "attn_cp:device": "cp",
    "pcp:0": "cp",
    "world:0": None,
}


@pytest.mark.parametrize(("description", "dimension"), DESCRIBED.items())
def test_a_description_that_names_a_dimension_decides(description: str, dimension: str | None):
    assert described_dimension(description) == dimension


ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
SIZES = {"pp": 2, "dp_replicate": 2, "dp_shard": 4, "cp": 2, "tp": 2}
FULL = facts(world_size=prod(SIZES.values()), ep=2, **SIZES)


def along(*axes: str) -> list[list[int]]:
    """Return the groups of ranks that differ in places on some axes alone, by numbering all places."""
    places = list(product(*(range(SIZES[axis]) for axis in ORDER)))
    fixed = [index for index, axis in enumerate(ORDER) if axis not in axes]
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(tuple(place[index] for index in fixed), []).append(rank)
    return list(found.values())


@pytest.mark.parametrize(
    ("axes", "dimension"),
    [((axis,), axis) for axis in ORDER]
    + [
        (("dp_shard", "cp"), "dp_shard"),
        (("dp_replicate", "dp_shard"), "dp"),
        (("dp_replicate", "dp_shard", "cp"), "dp"),
        (("cp", "tp"), "unknown"),
        (("pp", "tp"), "unknown"),
        (ORDER, "world"),
    ],
)
def test_ranks_along_axes_of_the_mesh_show_the_dimension(axes: tuple[str, ...], dimension: str):
    assert {dimension_of("undefined", members, FULL) for members in along(*axes)} == {dimension}


def test_ranks_that_fit_no_axis_are_not_guessed():
    # pairs that do not start where a pair of the mesh does, irregular ones, and single ranks
    for members in ([1, 2], [0, 3], [0, 1, 2], [0], [0, 1, 3, 2, 7], None):
        assert dimension_of("undefined", members, FULL) == "unknown"


def test_without_a_card_only_the_description_shows():
    assert dimension_of("undefined", [0, 1], facts(world_size=4)) == "unknown"
    assert dimension_of("undefined", [0, 1], facts(world_size=4, tp=3)) == "unknown"
    assert dimension_of("mesh_tp", [0, 1], facts()) == "tp"


def test_all_ranks_are_the_one_axis_there_is_or_the_world():
    assert dimension_of("default_pg", [0, 1, 2, 3], facts(world_size=4, tp=4)) == "tp"
    assert dimension_of("default_pg", [0, 1, 2, 3], facts(world_size=4, tp=2, dp_shard=2)) == "world"


def test_neighbours_on_the_sharded_axes_share_experts_where_no_axis_is_as_long():
    known = facts(world_size=16, dp_shard=8, tp=2, ep=4)
    assert dimension_of("undefined", [0, 2, 4, 6], known) == "ep"
    assert dimension_of("undefined", [1, 3, 5, 7], known) == "ep"
    assert dimension_of("undefined", [2, 4, 6, 8], known) == "unknown"
    assert dimension_of("undefined", [0, 1, 2, 3], known) == "unknown"


SERVED = facts(world_size=8, dp_replicate=2, pp=2, tp=2, framework="vLLM", phase="inference")
"""Ranks of vLLM lie as `arange(8).reshape(dp, pp, tp)`."""


@pytest.mark.parametrize(
    ("members", "dimension"),
    [
        ([0, 1], "tp"),
        ([6, 7], "tp"),
        ([0, 2], "pp"),
        ([5, 7], "pp"),
        ([0, 4], "dp_replicate"),
        ([3, 7], "dp_replicate"),
    ],
)
def test_replicas_of_a_serving_engine_lie_outside_of_its_stages(members: list[int], dimension: str):
    assert dimension_of("undefined", members, SERVED) == dimension


@pytest.mark.parametrize(
    ("framework", "phase", "order"),
    [
        ("vllm", "inference", "dp pp tp"),
        ("SGLang", "", "dp pp tp"),
        ("vLLM-Ascend", "", "dp pp tp"),
        ("", "inference", "dp pp tp"),
        ("", "training", "pp dp tp"),
        ("", "", "pp dp tp"),
        ("Megatron-LM", "inference", "pp dp tp"),
        ("torchtitan", "training", "pp dp tp"),
    ],
)
def test_the_framework_decides_how_ranks_lie(framework: str, phase: str, order: str):
    outer = [axis for axis in mesh_order(framework, phase) if axis in {"pp", "dp_replicate", "tp"}]
    assert " ".join(outer).replace("dp_replicate", "dp") == order


def test_a_data_parallel_degree_in_total_is_an_axis_of_the_mesh():
    known = facts(world_size=8, dp=2, pp=2, tp=2, framework="vllm")
    found = [dimension_of("undefined", members, known) for members in ([0, 1], [0, 2], [0, 4])]
    assert found == ["tp", "pp", "dp"]


def test_stages_repeat_in_each_replica_of_a_serving_engine():
    ranks = pl.Series(range(9))
    assert stages_of(ranks, SERVED).to_list() == [0, 0, 1, 1, 0, 0, 1, 1, None]
    trained = facts(world_size=8, dp_replicate=2, pp=2, tp=2)
    assert stages_of(ranks, trained).to_list() == [0, 0, 0, 0, 1, 1, 1, 1, None]


def test_a_group_that_its_description_puts_on_another_axis_contradicts_the_mesh():
    trained = facts(world_size=8, dp_replicate=2, pp=2, tp=2)
    assert contradicts_mesh("pp:0", [0, 2], trained)
    assert not contradicts_mesh("pp:0", [0, 2], SERVED)
    assert not contradicts_mesh("mesh_dp_shard", [0, 2], trained)  # data, by whatever name
    assert not contradicts_mesh("undefined", [0, 2], trained)


def test_a_card_whose_framework_lays_ranks_out_otherwise_is_contradicted_by_the_groups(tmp_path: Path):
    plan = Plan(dp_shard=2, tp=2, pp=2, microbatches=2, layers=1, steps=1, missing_ranks=frozenset({5, 6, 7}))
    write_run(plan, tmp_path)
    assert "mesh-contradicted" not in codes(tmp_path, "groups")

    (card,) = tmp_path.glob("*.yaml")
    card.write_text(card.read_text().replace("name: ccl_bench.testing", "name: vllm"))

    # groups of data are described as such and lie two ranks apart, where vLLM puts stages
    assert "mesh-contradicted" in codes(tmp_path, "groups")


def undescribed(trace: dict[str, Any]) -> None:
    for group in trace["distributedInfo"]["pg_config"]:
        group["pg_desc"] = "undefined"
    for event in trace["traceEvents"]:
        if "Process Group Description" in (arguments := event.get("args", {})):
            arguments["Process Group Description"] = "undefined"


def test_a_run_without_descriptions_has_the_dimensions_of_its_plan(tmp_path: Path):
    plan = Plan(
        dp_replicate=2,
        dp_shard=4,
        tp=2,
        pp=2,
        ep=2,
        microbatches=2,
        layers=1,
        steps=1,
        experts=Experts(((3, 5), (7, 1))),
        gradient_norm=Message(1, 100),
        missing_ranks=frozenset(range(32)) - {0, 1, 2, 3, 8},
    )
    expected = write_run(plan, tmp_path)
    for rank in plan.present_ranks:
        rewrite(trace_path(tmp_path, rank), undescribed)
    seen = {
        (m.dimension, tuple(sorted(m.members))) for m in expected.operations if m.collective != "send_recv"
    }
    planned = {members: dimension for dimension, members in seen if set(members) & set(plan.present_ranks)}
    found = tables(tmp_path, "groups", "traffic")
    reported = {tuple(row["members"]): row["dimension"] for row in found["groups"].to_dicts()}
    assert {members: reported[members] for members in planned} == planned
    messages = found["traffic"].filter(pl.col("peer").is_not_null())
    assert set(messages["dimension"]) == {"pp"}


def test_a_pair_of_ranks_serves_the_one_axis_in_which_they_differ():
    axes = SIZES
    assert axis_between(0, 1, axes) == "tp"
    assert axis_between(0, 2, axes) == "cp"
    assert axis_between(0, 32, axes) == "pp"
    assert axis_between(0, 33, axes) is None


def test_a_group_spans_nodes_where_its_ranks_lie_on_several():
    eight = facts(devices_per_node=8)
    assert [spans_nodes(ranks, eight) for ranks in ([0, 7], [7, 8], [8, 15], None)] == [
        False,
        True,
        False,
        None,
    ]
    assert spans_nodes([0, 7], facts()) is None


def test_ranks_are_written_short():
    assert [members_text(ranks) for ranks in ([0, 1, 2], [0, 2, 4], [0, 1], [3, 1, 2, 9])] == [
        "0..2",
        "0..4/2",
        "0,1",
        "1,2,3,9",
    ]
