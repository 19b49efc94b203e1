"""Models: parameter counts follow from the shapes, and unknown models are refused."""

from __future__ import annotations

import pytest

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.catalog.models import model, names


@pytest.mark.parametrize(
    ("name", "feed_forward", "head_norms"),
    [
        ("meta-llama/Llama-3.1-8B", 14336, False),
        ("meta-llama/Llama-3.1-70B", 28672, False),
        ("meta-llama/Llama-3.1-405B", 53248, False),
        ("meta-llama/Llama-2-7b-hf", 11008, False),
        ("Qwen/Qwen3-32B", 25600, True),
        ("Qwen/Qwen3-4B", 9728, True),
    ],
)
def test_a_dense_model_is_the_sum_of_its_matrices(name: str, feed_forward: int, head_norms: bool) -> None:
    found = model(name)
    query_and_output = 2 * found.hidden * found.heads * found.qk_head_dim
    key_and_value = 2 * found.hidden * found.kv_heads * found.qk_head_dim
    norms = 2 * found.hidden + (2 * found.qk_head_dim if head_norms else 0)
    layer = query_and_output + key_and_value + 3 * found.hidden * feed_forward + norms
    tables = found.embedding_parameters * (1 if found.tied_embeddings else 2)
    assert found.parameters == found.layers * layer + tables + found.hidden
    assert found.active_parameters == found.parameters


@pytest.mark.parametrize(("name", "parameters"), [("gpt2", 124_439_808), ("gpt2-xl", 1_557_611_200)])
def test_gpt2_is_the_sum_of_its_matrices_and_biases(name: str, parameters: int) -> None:
    found = model(name)
    layer = 12 * found.hidden**2 + 13 * found.hidden
    tables = found.embedding_parameters + found.position_parameters
    assert found.layers * layer + tables + 2 * found.hidden == parameters == found.parameters
    assert found.position_parameters == found.context_length * found.hidden


def test_mixtral_sends_a_token_to_two_of_eight_experts() -> None:
    found = model("mistralai/Mixtral-8x7B-v0.1")
    expert = 3 * 4096 * 14336
    assert found.parameters - found.active_parameters == found.layers * (8 - 2) * expert


@pytest.mark.parametrize(
    ("name", "dense_layers", "expert_width"),
    [("deepseek-ai/DeepSeek-V3", 3, 2048), ("deepseek-ai/DeepSeek-V2-Lite", 1, 1408)],
)
def test_deepseek_leaves_most_experts_out(name: str, dense_layers: int, expert_width: int) -> None:
    found = model(name)
    expert = 3 * found.hidden * expert_width
    unused = found.experts - found.experts_per_token
    assert found.parameters - found.active_parameters == (found.layers - dense_layers) * unused * expert


def test_deepseek_v3_has_the_size_its_report_gives() -> None:
    found = model("DeepSeek-V3")
    assert found.parameters == pytest.approx(671e9, rel=0.001)
    assert found.active_parameters == pytest.approx(37e9, rel=0.02)


def test_every_table_is_vocabulary_times_width() -> None:
    for name in names():
        found = model(name)
        assert found.embedding_parameters == found.vocabulary * found.hidden


def test_a_tied_table_is_multiplied_and_an_untied_one_only_looked_up() -> None:
    assert model("Qwen/Qwen3-4B").lookup_parameters == 0
    assert model("gpt2").lookup_parameters == 1024 * 768
    assert model("Qwen/Qwen3-32B").lookup_parameters == 151_936 * 5120


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.1-8B", "Llama-3.1-8B", "meta-llama/meta-llama-3.1-8b-instruct"]
)
def test_owner_case_and_older_names_do_not_matter(name: str) -> None:
    assert model(name).name == "meta-llama/Llama-3.1-8B"


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(NotMeasurable, match=r"did you mean.*Llama-3.1-8B"):
        model("meta-llama/Llama-3.1-9B")
    with pytest.raises(NotMeasurable, match="model_flops_per_token"):
        model("")
