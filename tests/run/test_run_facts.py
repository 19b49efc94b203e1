"""Facts of each source, and the first source of each fact, on values that meet every limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.card import card_in_mapping
from ccl_bench.run.documents import CARD, CEILING, RunDocuments
from ccl_bench.run.facts import (
    CODE,
    CONFIG,
    COUNTED,
    METADATA,
    TRACES,
    contradictions,
    device_contradictions,
    fact_sources,
    merge_facts,
)
from ccl_bench.side_files import kinds, train_config_in_text


def _stated(documents: RunDocuments, *traces: Any) -> dict[str, tuple[Any, str]]:
    """Return each fact with its source."""
    facts = merge_facts(fact_sources(documents, traces))
    return {name: (fact.value, fact.source) for name, fact in facts}


def _of_card(text: dict[str, Any], **top: Any) -> dict[str, Any]:
    stated = _stated(RunDocuments(card=card_in_mapping({"workload": text, **top}).value))
    return {name: value for name, (value, source) in stated.items() if source == CARD}


def _of_config(text: str) -> dict[str, Any]:
    documents = RunDocuments(config=train_config_in_text(text).value)
    return {name: value for name, (value, source) in _stated(documents).items() if source == CONFIG}


def _trace(rank: int | None, world_size: int | None = None, *, of_rank: bool = True) -> Any:
    return SimpleNamespace(rank=rank, world_size=world_size, form=SimpleNamespace(of_rank=of_rank))


def test_sources_are_named_as_the_kinds_of_their_files() -> None:
    assert (kinds.CARD.name, kinds.TRAIN_CONFIG.name) == (CARD, CONFIG)
    assert METADATA in kinds.RUN_METADATA.file_names
    assert kinds.NCCL_TESTS.name == CEILING


@pytest.mark.parametrize(("kind", "model"), [("GPU", "h100"), (None, "h100"), ("TPU", "h100"), ("cpu", None)])
def test_a_processor_is_no_device_of_the_catalog(kind: str | None, model: str | None) -> None:
    facts = _of_card({"hardware": {"xpu_spec": {"type": kind, "model": "h100"}}})
    assert facts.get("device") == model


@pytest.mark.parametrize(
    ("moe", "experts", "known"), [(True, None, True), (False, None, False), (False, 8, True), (None, 8, True)]
)
def test_a_model_with_experts_is_one_of_experts(moe: bool | None, experts: int | None, known: bool) -> None:
    facts = _of_card({"model": {"moe": moe, "model_arch": {"num_experts": experts}}})
    assert facts.get("is_moe") is known
    assert _of_card({}).get("is_moe") is None


@pytest.mark.parametrize(
    ("plan", "dp"), [({"dp": 4}, 4), ({"dp": 4, "dp_shard": 4}, None), ({"dp": 4, "dp_replicate": 4}, None)]
)
def test_a_degree_of_data_parallelism_counts_if_it_is_not_divided(
    plan: dict[str, int], dp: int | None
) -> None:
    assert _of_card({}, **{"Model-executor": {"model_plan_parallelization": plan}}).get("dp") == dp


def test_a_sweep_is_no_fact_of_a_card_without_one() -> None:
    assert _of_card({"data": {"batch_size": [1, 8]}})["batch_sizes"] == (1, 8)
    assert "batch_sizes" not in _of_card({"data": {"batch_size": 8}})


def test_the_address_of_a_public_model_gives_its_architecture() -> None:
    def stated(address: str) -> dict[str, Any]:
        found = _stated(RunDocuments(card=card_in_mapping({"hf_url": address}).value))
        return {name: value for name, (value, source) in found.items() if source.startswith("catalog")}

    dense = stated("https://huggingface.co/meta-llama/Llama-3.1-8B/")
    assert (dense["num_params"], dense["head_dim"], dense["is_moe"]) == (8_030_261_248, 128, False)
    assert dense.keys().isdisjoint({"num_experts", "num_params_active"})
    sparse = stated("https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite")
    assert (sparse["num_experts"], sparse["head_dim"], sparse["is_moe"]) == (64, (192 + 128) // 2, True)
    assert sparse["num_params_active"] < sparse["num_params"]
    assert stated("https://example.org/a/b") == {}


def test_sizes_that_a_configuration_leaves_open_are_no_facts() -> None:
    text = "[training]\nglobal_batch_size = {}\n[parallelism]\ndata_parallel_shard_degree = {}\n"
    assert _of_config(text.format(1, 1))["global_batch_size"] == 1
    assert _of_config(text.format(1, 1))["dp_shard"] == 1
    assert _of_config(text.format(-1, -1)).keys().isdisjoint({"global_batch_size", "dp_shard"})


@pytest.mark.parametrize(("degree", "known"), [(1, False), (2, True)])
def test_a_schedule_is_a_fact_of_a_pipeline(degree: int, known: bool) -> None:
    text = f"[parallelism]\npipeline_parallel_degree = {degree}\npipeline_parallel_schedule = '1F1B'\n"
    assert ("pp_schedule" in _of_config(text)) is known


@pytest.mark.parametrize(
    ("traces", "size"),
    [
        ([_trace(0, 8), _trace(1, 8)], (8, TRACES)),
        ([_trace(0), _trace(1)], (2, COUNTED)),
        ([_trace(0)], None),
        ([_trace(1), _trace(2)], None),
        ([_trace(0, 8), _trace(1, 4)], None),
        ([_trace(0), _trace(1), _trace(None, of_rank=False)], (2, COUNTED)),
    ],
)
def test_traces_give_the_number_of_ranks_that_they_state_else_their_own(
    traces: list[Any], size: tuple[int, str] | None
) -> None:
    assert _stated(RunDocuments(), *traces).get("world_size") == size


def test_a_default_of_a_configuration_and_the_number_of_traces_contradict_nothing() -> None:
    documents = RunDocuments(config=train_config_in_text("[training]\nseq_len = 8\n").value)

    def found(name: str, source: str) -> int:
        return len(contradictions([{name: Fact(1, CARD)}, {name: Fact(2, source)}], documents, []))

    assert found("tp", CONFIG) == found("world_size", COUNTED) == 0
    assert found("tp", METADATA) == found("seq_len", CONFIG) == found("world_size", TRACES) == 1


def test_a_device_that_no_trace_saw_is_reported_if_all_are_known() -> None:
    facts = Facts(device=Fact("h100", CARD))

    def found(*names: str | None) -> list[str]:
        devices = pl.DataFrame({"name": names}, schema={"name": pl.String})
        return [finding.code for finding in device_contradictions({"facts": facts, "devices": devices})]

    assert found("NVIDIA A100-SXM4-80GB") == [CODE]
    assert found("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB", None) == [CODE]
    assert found("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3") == []
    assert found("NVIDIA A100-SXM4-80GB", "Strange 9000") == []
    assert found() == []
    assert device_contradictions({"facts": facts}) == []
    devices = pl.DataFrame({"name": ["NVIDIA A100-SXM4-80GB"]})
    assert [f.count for f in device_contradictions({"facts": facts, "devices": devices})] == [2]
