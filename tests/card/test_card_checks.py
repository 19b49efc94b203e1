"""A card that contradicts itself, or says what is hardly meant."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from card_examples import FULL_CARD, changed

from ccl_bench.card import Severity, card_in_mapping, card_in_text, reading, template

PLAN = "Model-executor.model_plan_parallelization"


def severities(text):
    return {issue.path: issue.severity for issue in card_in_text(text).issues}


def test_degrees_that_do_not_multiply_to_the_devices_are_an_error():
    text = changed("tp: 4", "tp: 8")  # 1 x 2 x 8 x 2 x 1 = 32 ranks on 16 devices
    assert severities(text) == {PLAN: Severity.ERROR}
    assert card_in_text(text).value.world_size is None


def test_degrees_and_devices_that_agree_give_the_world_size():
    assert card_in_text(FULL_CARD).value.world_size == 16


def test_degrees_that_are_missing_are_asked_for():
    text = changed("    dp_shard: 2\n", "").replace("    dp_replicate: 1\n", "")
    assert severities(text) == {PLAN: Severity.WARNING}
    assert card_in_text(text).value.world_size == 16


def test_missing_degrees_that_cannot_fill_the_devices_are_an_error():
    assert severities(changed("    dp_shard: 2\n", "").replace("tp: 4", "tp: 3"))[PLAN] is Severity.ERROR


def test_a_total_data_parallel_degree_must_agree_with_its_parts():
    assert severities(changed("    tp: 4", "    tp: 4\n    dp: 4"))[f"{PLAN}.dp"] is Severity.ERROR


def test_a_total_data_parallel_degree_alone_is_used():
    card = card_in_text(changed("    dp_replicate: 1\n    dp_shard: 2\n", "    dp: 2\n")).value
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
    assert card_in_text(text).value.global_batch_size == 32


def test_a_local_batch_counts_once_for_each_data_parallel_rank():
    assert card_in_text(changed("scope: global", "scope: local")).value.global_batch_size == 32 * 2


def test_a_local_batch_without_a_data_parallel_degree_gives_no_global_one():
    text = changed("scope: global", "scope: local").replace("    dp_shard: 2\n", "")
    card = card_in_text(text.replace("    dp_replicate: 1\n", "")).value
    assert (card.parallelism.data_parallel, card.global_batch_size) == (None, None)


def test_microbatches_follow_from_batch_degree_and_size():
    assert card_in_text(FULL_CARD).value.microbatches == 32 // (2 * 2)
    assert card_in_text(changed("pp_mb: 2", "pp_mb: 3")).value.microbatches is None
    assert card_in_text(changed("pp_mb: 2", "microbatches: 5")).value.microbatches == 5
    assert card_in_text(changed("pp_mb: 2", "pp_mb: 2\n    microbatches: 5")).value.microbatches == 5
    lines = [line for line in FULL_CARD.splitlines() if "batch_size" not in line]
    assert card_in_text("\n".join(lines)).value.microbatches is None


def test_an_unknown_kind_of_trace_is_a_warning_that_keeps_it():
    reading = card_in_text(changed("    - json", "    - jsno"))
    assert reading.value.metric_source.traces == ("nsys", "jsno")
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


def stated(*, arch=None, model=None, data=None, device=None, links=None, plan=None, **executor):
    """Return a card with these parts, as plain data."""
    hardware = {"xpu_spec": device or {}, "network_topo": {"bandwidth_gbps": links or {}}}
    return {
        "workload": {
            "model": {**(model or {}), "model_arch": arch or {}},
            "data": data or {},
            "hardware": hardware,
        },
        "Model-executor": {"model_plan_parallelization": plan or {}, **executor},
    }


def complaints(**parts):
    """Return {last key: severity} of what a card with these parts is warned of, apart from missing values."""
    issues = card_in_mapping(stated(**parts)).issues
    return {
        issue.path.rpartition(".")[2]: str(issue.severity)
        for issue in issues
        if not issue.message.startswith("is missing; metrics that need it")
    }


PRODUCT = "model_plan_parallelization"


@pytest.mark.parametrize(
    ("plan", "devices", "found"),
    [
        ({"dp": 2, "dp_shard": 2}, None, {}),
        ({"dp": 2, "dp_replicate": 2}, None, {}),
        ({"dp": 4, "dp_shard": 2}, None, {"dp": "error"}),
        ({"dp": 4, "dp_replicate": 2}, None, {"dp": "error"}),
        ({"dp": 4, "dp_replicate": 2, "dp_shard": 2}, None, {}),
        ({"world_size": 8}, 8, {}),
        ({"world_size": 8}, 16, {"world_size": "error"}),
        ({"world_size": 8}, None, {}),
        ({"tp": 4, "world_size": 8}, None, {PRODUCT: "warning"}),
        ({"tp": 3, "world_size": 8}, None, {PRODUCT: "error"}),
        ({"tp": 8, "world_size": 8}, None, {}),
        ({"tp": 2, "cp": 2}, 4, {}),
        ({"tp": 1}, 4, {}),
        ({"tp": 2}, 4, {PRODUCT: "warning"}),
        ({"dp": 2, "tp": 2, "pp": 2}, 8, {}),
        ({"dp": 2, "tp": 2, "pp": 2}, 16, {PRODUCT: "error"}),
        ({"dp": 2, "tp": 2, "pp": 2, "cp": 2}, 16, {}),
        ({"dp": 2, "tp": 2}, 16, {PRODUCT: "warning"}),
        ({"dp": 2, "pp": 2}, 16, {PRODUCT: "warning"}),
        ({"tp": 2, "pp": 2}, 16, {PRODUCT: "warning"}),
    ],
)
def test_degrees_multiply_to_the_ranks(plan, devices, found):
    assert complaints(plan=plan, device={"total_count": devices} if devices else None) == found


@pytest.mark.parametrize(
    ("ep", "times"), [(2, "their product must be 2 times as large"), (3, "correct the degrees")]
)
def test_ranks_that_experts_seem_to_multiply_are_an_error_with_its_own_fix(ep, times):
    plan = {"dp": 2, "tp": 2, "pp": 2, "ep": ep}
    issues = card_in_mapping(stated(plan=plan, device={"total_count": 16})).issues
    (fix,) = (issue.fix for issue in issues if issue.path == PLAN)
    assert times in fix


@pytest.mark.parametrize(
    ("total", "per_node", "nodes", "found"),
    [
        (8, 4, None, {}),
        (4, 4, None, {}),
        (2, 4, None, {}),
        (6, 4, None, {"count_per_node": "warning"}),
        (8, 4, 2, {}),
        (4, 4, 2, {"num_nodes": "warning"}),
        (9, 9, 2, {"num_nodes": "warning"}),
        (2, 4, 1, {}),
        (5, 4, 2, {"count_per_node": "warning"}),
        (8, None, 3, {}),
        (None, 8, 3, {}),
    ],
)
def test_devices_fill_their_nodes(total, per_node, nodes, found):
    device = {"total_count": total, "count_per_node": per_node, "num_nodes": nodes}
    assert complaints(device=device) == found


# An A100 has 2,400 Gbit/s in one direction, which are 300 GB/s, and 600 GB/s in both; 2 % are tolerated.
@pytest.mark.parametrize(
    ("written", "warned"),
    [
        (2448, False), (2449, True), (2352, False), (2000, False), (1, False),
        (612, True), (613, False), (588, True), (587, False), (306, True), (307, False), (294, True),
        (293, False),
    ],
)  # fmt: skip
def test_a_link_is_warned_of_if_it_is_too_fast_or_the_figure_in_bytes(written, warned):
    found = complaints(links={"scale_up": written}, device={"model": "nvidia_a100"})
    assert found == ({"scale_up": "warning"} if warned else {})
    assert complaints(links={"scale_up": written}) == {}
    assert complaints(links={"scale_up": written}, device={"model": "a toaster"}) == {}


# An H100 has 3,600 Gbit/s in one direction, as a card 2,400; a quarter and an eighth are those in GB/s.
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (2400, None),
        (3000, None),
        (3600, None),
        (3672, None),
        (3673, 3600),
        (450, 3600),
        (900, 3600),
        (300, 2400),
        (600, 2400),
        (700, None),
    ],
)
def test_a_link_of_any_device_that_goes_by_the_name_is_no_mistake(
    written: float, meant: float | None
) -> None:
    issues = card_in_mapping(stated(links={"scale_up": written}, device={"model": "h100"})).issues
    fixes = [issue.fix.partition(",")[0] for issue in issues if issue.path.endswith("scale_up")]
    assert fixes == ([] if meant is None else [f"write {meant}"])


def test_a_link_of_one_device_is_not_taken_for_another_unit_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {"slow": 100e9, "none": None, "fast": 400e9}  # 400 and 1,600 Gbit/s, or 400 GB/s
    catalog = SimpleNamespace(
        models=lambda name: list(rates), device=lambda name: SimpleNamespace(link_bytes_per_s=rates[name])
    )
    monkeypatch.setattr(reading, "devices", catalog)
    assert complaints(links={"scale_up": 400}) == complaints(links={"scale_up": 1600}) == {}
    assert (
        complaints(links={"scale_up": 200}) == complaints(links={"scale_up": 1700}) == {"scale_up": "warning"}
    )


def test_experts_that_are_not_written_multiply_no_ranks() -> None:
    plan = {"dp": 2, "tp": 3, "pp": 5}
    card = card_in_mapping(stated(plan=plan, framework={"name": "maxtext"})).value
    assert card.world_size == 2 * 3 * 5
    card = card_in_mapping(stated(plan={**plan, "ep": 7}, framework={"name": "maxtext"})).value
    assert card.world_size == 2 * 3 * 5 * 7
    card = card_in_mapping(stated(plan={**plan, "ep": 7}, framework={"name": "torchtitan"})).value
    assert card.world_size == 2 * 3 * 5


@pytest.mark.parametrize(("trace", "is_near"), [("jsno", True), ("zzzz", False)])
def test_a_strange_kind_of_trace_is_told_the_nearest_or_all(trace: str, is_near: bool) -> None:
    issues = card_in_mapping({"metric_source": {"traces": [trace]}}).issues
    (fix,) = (issue.fix for issue in issues if issue.path == "metric_source.traces[0]")
    assert ("json" in fix, "memory_snapshot" in fix) == (True, not is_near)


@pytest.mark.parametrize(
    ("model", "arch", "plan", "found"),
    [
        ({"moe": False}, {"num_experts": 1}, {"ep": 1}, {}),
        ({"moe": False}, {}, {}, {}),
        ({"moe": False}, {"num_experts": 2}, {}, {"moe": "warning"}),
        ({"moe": False}, {}, {"ep": 2}, {"moe": "warning"}),
        ({}, {"num_experts": 2}, {"ep": 2}, {}),
        ({"moe": True}, {"num_params": 9}, {}, {"num_params_active": "warning"}),
        ({"moe": True}, {"num_params": 9, "num_params_active": 9}, {}, {}),
        ({"moe": True}, {}, {}, {}),
        ({}, {}, {"dp": 4, "ep": 3}, {"ep": "warning"}),
        ({}, {}, {"dp": 4, "ep": 2}, {}),
        ({}, {}, {"dp": 3, "ep": 2}, {"ep": "warning"}),
        ({}, {}, {"dp": 3, "ep": 1}, {}),
        ({}, {}, {"dp": 4, "pp": 3, "ep": 3}, {"ep": "warning"}),
        ({}, {}, {"tp": 4, "ep": 3}, {}),
        ({}, {}, {"dp": 4, "world_size": 4, "ep": 3}, {"ep": "warning"}),
        ({}, {}, {"dp": 4, "world_size": 8, "ep": 3}, {PRODUCT: "warning"}),
    ],
)
def test_experts_agree_with_the_model_and_the_plan(model, arch, plan, found):
    assert complaints(model=model, arch=arch, plan=plan) == found


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("num_params_embedding", "num_params"),
        ("num_params_active", "num_params"),
        ("num_kv_heads", "num_heads"),
        ("num_experts_per_tok", "num_experts"),
    ],
)
def test_a_part_may_be_as_large_as_its_whole(part, whole):
    assert complaints(arch={part: 8, whole: 8}) == {}
    assert complaints(arch={part: 9, whole: 8})[part] in {"error", "warning"}
    found = card_in_mapping(stated(arch={part: 9, whole: 8})).errors
    assert [issue.path.rpartition(".")[2] for issue in found] == [part]
    assert complaints(arch={part: 9}) == complaints(arch={whole: 8}) == {}


def test_heads_are_shared_evenly():
    assert complaints(arch={"num_heads": 32, "num_kv_heads": 8}) == {}
    assert complaints(arch={"num_heads": 32, "num_kv_heads": 5}) == {"num_kv_heads": "warning"}


@pytest.mark.parametrize(
    ("phase", "data", "granularity", "found"),
    [
        ("inference", {"seq_len": 8, "input_len": 8, "output_len": 2}, None, {}),
        ("inference", {"seq_len": 10, "input_len": 8, "output_len": 2}, None, {}),
        ("inference", {"seq_len": 9, "input_len": 8, "output_len": 2}, None, {"seq_len": "warning"}),
        ("inference", {"seq_len": 9, "input_len": 8}, None, {}),
        ("training", {"seq_len": 9, "output_len": 2}, None, {"output_len": "warning"}),
        ("training", {"seq_len": 9, "input_len": 8}, None, {}),
        (None, {"seq_len": 9, "input_len": 8, "output_len": 2}, None, {}),
        ("inference", {}, "model_fwd_bwd_pass", {"granularity": "warning"}),
        ("inference", {}, "model_fwd", {}),
        ("training", {}, "model_fwd_bwd_pass", {}),
        ("training", {}, "everything", {"granularity": "warning"}),
    ],
)
def test_lengths_and_granularity_agree_with_the_phase(phase, data, granularity, found):
    assert complaints(model={"phase": phase, "granularity": granularity}, data=data) == found


@pytest.mark.parametrize(
    ("size", "scope", "degree", "found"),
    [
        (33, None, 1, {}),
        (33, "global", 1, {}),
        (33, "global", 2, {"batch_size": "warning"}),
        (32, "global", 2, {}),
        (33, "local", 2, {}),
        (32, None, 2, {"batch_size": "note"}),
        (None, None, 2, {}),
        (33, None, None, {}),
        (33, "global", None, {}),
        (33, "global", 3, {}),
    ],
)
def test_a_batch_divides_among_the_data_parallel_ranks(size, scope, degree, found):
    data = {"batch_size": size, "batch_size_scope": scope}
    assert complaints(data=data, plan={"dp": degree}) == found


@pytest.mark.parametrize(
    ("plan", "degree", "product"),
    [
        ({}, None, 1),
        ({"dp": 3}, 3, 3),
        ({"dp_replicate": 3}, 3, 3),
        ({"dp_shard": 3}, 3, 3),
        ({"dp_replicate": 2, "dp_shard": 3}, 6, 6),
        ({"dp_replicate": 2, "dp_shard": 3, "tp": 5, "pp": 7, "cp": 11}, 6, 6 * 5 * 7 * 11),
    ],
)
def test_degrees_that_are_not_written_count_as_1(plan, degree, product):
    found = card_in_mapping(stated(plan=plan)).value.parallelism
    assert (found.data_parallel, found.product) == (degree, product)


@pytest.mark.parametrize(
    ("plan", "devices", "ranks"),
    [
        ({"dp": 2, "tp": 2, "pp": 2}, None, 8), ({"dp": 2, "tp": 2}, None, None),
        ({"world_size": 4}, None, 4),
        ({}, 4, 4), ({"world_size": 4}, 8, None), ({"dp": 2, "tp": 2, "pp": 2}, 8, 8), ({}, None, None),
    ],
)  # fmt: skip
def test_ranks_are_known_if_all_that_states_them_agrees(plan, devices, ranks):
    card = card_in_mapping(stated(plan=plan, device={"total_count": devices})).value
    assert card.world_size == ranks


@pytest.mark.parametrize(
    ("total", "per_node", "is_read"),
    [(4, 4, True), (2, 4, True), (5, 4, False), (None, 4, False), (4, None, False)],
)
def test_a_lone_link_is_that_inside_a_node_if_the_run_has_one(total, per_node, is_read):
    parts = {"links": [2400], "device": {"total_count": total, "count_per_node": per_node}}
    reading = card_in_mapping(stated(**parts))
    assert (reading.value.hardware.network.bandwidth.scale_up == 2400) is is_read
    assert bool(reading.errors) is not is_read


@pytest.mark.parametrize(
    ("contact", "is_one"),
    [
        ("a@b", True),
        ("https://b", True),
        ("a@b c", False),
        ("a b@c", False),
        ("a", False),
        ("ftp://b", False),
    ],
)
def test_a_contact_is_a_mail_address_or_a_web_address(contact, is_one):
    issues = card_in_mapping({"contact": contact}).issues
    assert ("contact" not in {issue.path for issue in issues}) is is_one


def test_secrets_and_kinds_of_trace_are_checked_wherever_they_are():
    found = complaints(framework={"name": "x", "env": {"WANDB_API_KEY": "1", "DEBUG": "1"}})
    assert found == {"WANDB_API_KEY": "warning"}
    issues = card_in_mapping({"metric_source": {"traces": ["NSYS", "Json-TPU", "other"]}}).issues
    assert [issue.path for issue in issues if "traces" in issue.path] == ["metric_source.traces[2]"]


@pytest.mark.parametrize(("version", "found"), [(1, {}), (None, {}), (2, {"version": "note"})])
def test_another_version_of_the_layout_is_noted(version, found):
    issues = card_in_mapping({"version": version, **stated()}).issues
    assert {issue.path: str(issue.severity) for issue in issues if issue.path == "version"} == found


@pytest.mark.parametrize(
    ("data", "missing"), [({"input_len": 8}, False), ({"seq_len": 8}, False), ({"output_len": 8}, True)]
)
def test_the_length_of_a_prompt_is_a_length(data, missing):
    issues = card_in_mapping(stated(data=data)).issues
    assert ("workload.data.seq_len" in {issue.path for issue in issues}) is missing
