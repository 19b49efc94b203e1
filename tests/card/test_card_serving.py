"""Cards of inference servers: expert parallelism, sweeps over batch sizes, and the load."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.card import card_in_mapping, card_in_text
from ccl_bench.card.comparison_fields import fields_of
from ccl_bench.metrics.throughput_tokens_sec import throughput_tokens_sec
from ccl_bench.run.documents import RunDocuments
from ccl_bench.run.facts import fact_sources, merge_facts

EP = "Model-executor.model_plan_parallelization.ep"
ONES = {"dp_replicate": 1, "dp_shard": 1, "tp": 1, "pp": 1, "cp": 1}


def _card(
    plan: dict[str, int] | None = None, *, framework: str = "vllm", devices: int = 4, **workload: Any
) -> dict[str, Any]:
    workload = {"model": {"phase": "inference"}} | workload
    hardware = {"xpu_spec": {"total_count": devices}}
    executor = {"framework": {"name": framework}, "model_plan_parallelization": plan or {}}
    return {"workload": {"hardware": hardware} | workload, "Model-executor": executor}


def _severities(card: dict[str, Any]) -> dict[str, str]:
    return {issue.path: str(issue.severity) for issue in card_in_mapping(card).issues if issue.path}


@pytest.mark.parametrize(
    ("plan", "devices"),
    [(ONES | {"ep": 4}, 4), (ONES | {"ep": 4, "pp": 2}, 8), (ONES | {"ep": 8, "tp": 4}, 8)],
)
def test_experts_of_a_server_span_its_ranks_and_multiply_none(plan: dict[str, int], devices: int) -> None:
    reading = card_in_mapping(_card(plan, devices=devices))
    assert reading.errors == []
    assert reading.value.world_size == devices
    assert _severities(_card(plan, devices=devices))[EP] == "note"


@pytest.mark.parametrize("framework", ["vllm", "SGLang 0.5"])
def test_an_engine_serves_without_saying_so(framework: str) -> None:
    card = _card(ONES | {"ep": 4}, framework=framework, model={})
    assert card_in_mapping(card).errors == []


@pytest.mark.parametrize(
    "card",
    [
        _card(ONES | {"ep": 4}, framework="torchtitan", model={"phase": "training"}),
        _card(ONES | {"ep": 2}),
        _card(ONES | {"ep": 4, "tp": 3}),
    ],
    ids=["training", "fewer experts than ranks", "degrees that do not divide"],
)
def test_other_degrees_that_do_not_multiply_to_the_ranks_stay_an_error(card: dict[str, Any]) -> None:
    assert len(card_in_mapping(card).errors) == 1


def test_a_list_of_batch_sizes_is_a_sweep_without_a_single_one() -> None:
    card = card_in_text("workload:\n  data:\n    batch_size: [1, 8, 64]\n    seq_len: 16\n")
    assert [issue.path for issue in card.issues if issue.severity == "note"] == ["workload.data.batch_size"]
    assert card.errors == []
    assert (card.value.data.batch_size, card.value.data.batch_sizes) == (None, (1, 8, 64))
    assert card.value.global_batch_size is None


def test_a_number_that_needs_one_batch_size_refuses_a_sweep_with_its_values() -> None:
    card = _card(data={"batch-size": [1, 8], "seq_len": 16})
    facts = merge_facts(fact_sources(RunDocuments(card=card_in_mapping(card).value), []))
    with pytest.raises(
        NotMeasurable, match="batch_size is a sweep over 1, 8 in the workload card"
    ) as refused:
        throughput_tokens_sec(None, facts)  # type: ignore[arg-type]
    assert "global_batch_size" in refused.value.fix


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [([32], (32, ())), ([1, "two"], (None, ())), ([1, 0], (None, ())), ([[1], [2]], (None, ()))],
)
def test_a_list_that_is_no_sweep_keeps_one_value_or_none(sizes: list[Any], kept: tuple[Any, Any]) -> None:
    reading = card_in_mapping(_card(data={"batch_size": sizes}))
    assert (reading.value.data.batch_size, reading.value.data.batch_sizes) == kept
    assert bool(reading.errors) is (kept[0] is None)


def test_the_load_of_a_server_is_read_where_people_write_it() -> None:
    load = {"num_prompts": 1000, "request_rate": "inf", "max_tokens": 128}
    for card in (_card(data=load), _card(serving=load), _card(data={"serving": load})):
        serving = card_in_mapping(card).value.data.serving
        assert (serving.num_prompts, serving.request_rate, serving.max_tokens) == (1000, math.inf, 128)
        assert "warning" not in {
            severity for path, severity in _severities(card).items() if path.split(".")[-1] in load
        }


def test_a_topology_of_the_hardware_is_that_of_its_network() -> None:
    card = _card()
    card["workload"]["hardware"]["topology"] = "fat-tree"
    assert card_in_mapping(card).value.hardware.network.topology == "fat-tree"


def test_the_load_of_a_server_is_a_fact_and_a_field_of_comparisons() -> None:
    card = card_in_mapping(_card(data={"request_rate": 4, "num_prompts": 10})).value
    facts = dict(merge_facts(fact_sources(RunDocuments(card=card), [])))
    assert (facts["num_prompts"].value, facts["request_rate"].value) == (10, "4.0")
    assert fields_of(card)["data.serving.num_prompts"] == 10


@pytest.mark.parametrize("word", ["model_fwd_pass", "request", "Model-Fwd-Pass"])
def test_granularities_of_servers_are_known(word: str) -> None:
    path = "workload.model.granularity"
    assert path not in _severities(_card(model={"phase": "inference", "granularity": word}))


SPELLINGS = {
    "training": ("TRAINING", "Pre-Training", "fine tuning", "SFT"),
    "inference": ("Inference", "online-serving", "Serving"),
}


@pytest.mark.parametrize(
    ("phase", "word"), [(phase, word) for phase in SPELLINGS for word in SPELLINGS[phase]]
)
def test_a_phase_is_read_in_any_spelling(phase: str, word: str) -> None:
    assert card_in_mapping(_card(model={"phase": word})).value.model.phase == phase
