"""A card that contradicts itself, or says what is hardly meant."""

from __future__ import annotations

import pytest
from card_examples import FULL_CARD, changed

from ccl_bench.card import Severity, card_in_text, template

PLAN = "Model-executor.model_plan_parallelization"


def severities(text):
    return {issue.path: issue.severity for issue in card_in_text(text).issues}


def test_degrees_that_do_not_multiply_to_the_devices_are_an_error():
    text = changed("tp: 4", "tp: 8")  # 1 x 2 x 8 x 2 x 1 = 32 ranks on 16 devices
    assert severities(text) == {PLAN: Severity.ERROR}
    assert card_in_text(text).card.world_size is None


def test_degrees_and_devices_that_agree_give_the_world_size():
    assert card_in_text(FULL_CARD).card.world_size == 16


def test_degrees_that_are_missing_are_asked_for():
    text = changed("    dp_shard: 2\n", "").replace("    dp_replicate: 1\n", "")
    assert severities(text) == {PLAN: Severity.WARNING}
    assert card_in_text(text).card.world_size == 16


def test_missing_degrees_that_cannot_fill_the_devices_are_an_error():
    assert severities(changed("    dp_shard: 2\n", "").replace("tp: 4", "tp: 3"))[PLAN] is Severity.ERROR


def test_a_total_data_parallel_degree_must_agree_with_its_parts():
    assert severities(changed("    tp: 4", "    tp: 4\n    dp: 4"))[f"{PLAN}.dp"] is Severity.ERROR


def test_a_total_data_parallel_degree_alone_is_used():
    card = card_in_text(changed("    dp_replicate: 1\n    dp_shard: 2\n", "    dp: 2\n")).card
    assert card.parallelism.data_parallel == 2
    assert card.world_size == 16


def test_devices_that_do_not_fill_their_nodes_are_a_warning():
    text = changed("count_per_node: 4", "count_per_node: 3")
    assert severities(text) == {"workload.hardware.xpu_spec.count_per_node": Severity.WARNING}


@pytest.mark.parametrize(("nodes", "holds"), [(3, False), (4, True), (5, False)])
def test_nodes_hold_the_devices_and_none_too_many(nodes, holds):
    found = severities(changed("count_per_node: 4", f"count_per_node: 4\n      num_nodes: {nodes}"))
    assert found == ({} if holds else {"workload.hardware.xpu_spec.num_nodes": Severity.WARNING})


def test_expert_parallel_ranks_come_from_the_stage():
    assert severities(changed("ep: 1", "ep: 3").replace("moe: false", "moe:")) == {
        f"{PLAN}.ep": Severity.WARNING
    }


def test_expert_parallelism_of_a_dense_model_is_a_warning():
    assert severities(changed("ep: 1", "ep: 8")) == {"workload.model.moe": Severity.WARNING}


def test_a_mixture_of_experts_needs_its_active_parameters():
    text = changed("moe: false", "moe: true")
    assert severities(text) == {"workload.model.model_arch.num_params_active": Severity.WARNING}


def test_a_part_larger_than_its_whole_is_an_error():
    text = changed("num_params_embedding: 525336576", "num_params_embedding: 9000000000")
    assert severities(text) == {"workload.model.model_arch.num_params_embedding": Severity.ERROR}


def test_inference_has_no_backward_pass():
    assert "workload.model.granularity" in severities(changed("phase: training", "phase: inference"))


def test_an_inference_sequence_is_prompt_and_answer():
    text = changed("phase: training", "phase: inference").replace(
        "seq_len: 8192", "seq_len: 999\n    input_len: 1024\n    output_len: 128"
    )
    assert "workload.data.seq_len" in severities(text)


def test_a_batch_without_scope_is_global_and_says_so():
    text = changed("    batch_size_scope: global\n", "")
    assert severities(text) == {"workload.data.batch_size": Severity.NOTE}
    assert card_in_text(text).card.global_batch_size == 32


def test_a_local_batch_counts_once_for_each_data_parallel_rank():
    assert card_in_text(changed("scope: global", "scope: local")).card.global_batch_size == 32 * 2


def test_a_local_batch_without_a_data_parallel_degree_gives_no_global_one():
    text = changed("scope: global", "scope: local").replace("    dp_shard: 2\n", "")
    card = card_in_text(text.replace("    dp_replicate: 1\n", "")).card
    assert (card.parallelism.data_parallel, card.global_batch_size) == (None, None)


def test_microbatches_follow_from_batch_degree_and_size():
    assert card_in_text(FULL_CARD).card.microbatches == 32 // (2 * 2)
    assert card_in_text(changed("pp_mb: 2", "pp_mb: 3")).card.microbatches is None
    assert card_in_text(changed("pp_mb: 2", "microbatches: 5")).card.microbatches == 5
    assert card_in_text(changed("pp_mb: 2", "pp_mb: 2\n    microbatches: 5")).card.microbatches == 5
    lines = [line for line in FULL_CARD.splitlines() if "batch_size" not in line]
    assert card_in_text("\n".join(lines)).card.microbatches is None


def test_an_unknown_kind_of_trace_is_a_warning_that_keeps_it():
    reading = card_in_text(changed("    - json", "    - jsno"))
    assert reading.card.metric_source.traces == ("nsys", "jsno")
    assert [issue.path for issue in reading.issues] == ["metric_source.traces[1]"]
    assert "json" in reading.issues[0].fix


@pytest.mark.parametrize("url", ["https://me:secret@example.org/t", "s3://key@bucket/t"])
def test_a_password_in_an_address_is_a_warning(url):
    assert severities(changed("trace_url: #", f"trace_url: {url} #")) == {"trace_url": Severity.WARNING}


def test_a_secret_among_the_environment_variables_is_a_warning():
    text = changed("      NCCL_IB_QPS_PER_CONNECTION: 8", "      HF_TOKEN: abc")
    assert severities(text) == {"Model-executor.communication_library.env.HF_TOKEN": Severity.WARNING}


def test_a_contact_that_reaches_nobody_is_a_warning():
    assert severities(changed("ada@example.org", "ada")) == {"contact": Severity.WARNING}


def test_what_metrics_need_and_the_card_lacks_is_a_warning_each():
    issues = card_in_text(template()).issues
    assert {issue.severity for issue in issues} == {Severity.WARNING}
    assert "workload.model.precision" in {issue.path for issue in issues}


def test_a_value_that_failed_is_not_called_missing_as_well():
    paths = [
        issue.path for issue in card_in_text(changed("precision: bf16", "precision: none of these")).issues
    ]
    assert paths == ["workload.model.precision"]


@pytest.mark.parametrize(("ep", "divides"), [(8, True), (16, True), (3, False)])
def test_without_a_pipeline_all_ranks_are_one_stage(ep, divides):
    text = changed("ep: 1", f"ep: {ep}").replace("moe: false", "moe:").replace("tp: 4", "tp: 8")
    text = "\n".join(line for line in text.splitlines() if line.strip() != "pp: 2") + "\n"
    assert (f"{PLAN}.ep" not in severities(text)) is divides
