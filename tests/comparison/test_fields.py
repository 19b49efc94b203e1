"""Which fields of a card make runs incomparable, and which are what is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import UsageError
from ccl_bench.card import Card, card_in_mapping, card_in_text
from ccl_bench.card.comparison_fields import field_rules, fields_of, unknown_fields, unranked_reason
from ccl_bench.card.fields import FileSection
from ccl_bench.comparison import (
    comparison_key,
    find_differences,
    judge_comparability,
)
from ccl_bench.comparison.comparability import agree, known_field
from ccl_bench.evaluate.validate import validate

TRAINING = {
    "model.phase": "training",
    "model.model_family": "llama-3.1-8b",
    "model.precision": "bf16",
    "data.global_batch_size": 32,
    "data.seq_len": 4096,
}


def paths(part: type[FileSection], before: str = "") -> set[str]:
    """Return every field of a card by its name, as fields.toml shortens it."""
    found: set[str] = set()
    for name, info in part.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, FileSection):
            found |= paths(kind, f"{before}{name}.")
        else:
            found.add(f"{before}{name}")
    return {path.removeprefix("workload.").removeprefix("executor.") for path in found}


def card(**data: object) -> Card:
    """Return a card with a batch."""
    return card_in_mapping({"workload": {"data": data}, "Model-executor": {}}).value


def test_every_field_of_a_card_has_a_role_and_a_reason() -> None:
    derived = {"data.global_batch_size", "data.tokens_per_step"}
    assert set(field_rules()) == paths(Card) | derived
    assert all(rule.reason for rule in field_rules().values())


def test_facts_named_in_the_rules_exist() -> None:
    assert all(hasattr(Facts(), rule.fact) for rule in field_rules().values() if rule.fact)


def test_equal_fields_compare() -> None:
    found = judge_comparability(TRAINING, dict(TRAINING))
    assert (found.verdict, found.workload, found.studied, found.unknown) == ("comparable", (), (), ())


@pytest.mark.parametrize("field", TRAINING)
def test_another_workload_does_not_compare(field: str) -> None:
    other = TRAINING | {field: "inference" if field == "model.phase" else 7}
    found = judge_comparability(TRAINING, other)
    assert found.verdict == "not comparable"
    assert [each.field for each in found.workload] == [field]
    assert found.workload[0].reason


@pytest.mark.parametrize(
    "field", ["hardware.device.model", "framework.version", "parallelism.tp", "communication_library.name"]
)
def test_what_is_compared_may_differ_and_is_reported(field: str) -> None:
    found = judge_comparability(TRAINING | {field: "one"}, TRAINING | {field: "other"})
    assert found.verdict == "comparable"
    assert [(each.field, each.baseline, each.other) for each in found.studied] == [(field, "one", "other")]


def test_a_studied_field_that_only_one_side_says_is_reported() -> None:
    found = find_differences(TRAINING | {"framework.version": "2.2"}, TRAINING)
    assert [(each.baseline, each.other) for each in found] == [("2.2", None)]


def test_without_the_workload_nobody_knows() -> None:
    found = judge_comparability({}, TRAINING)
    assert found.verdict == "unknown"
    assert found.unknown == tuple(TRAINING)[:3]


def test_the_same_recording_compares_with_or_without_a_card() -> None:
    assert judge_comparability({}, {}, is_same_run=True).verdict == "comparable"


def test_training_needs_a_sequence_length_and_inference_a_prompt_length() -> None:
    assert unknown_fields({"model.phase": "training"})[-1] == "data.seq_len"
    assert unknown_fields({"model.phase": "inference"})[-2:] == ["data.input_len", "data.output_len"]
    assert unknown_fields(TRAINING) == []


def test_spelling_is_no_difference() -> None:
    other = TRAINING | {"model.model_family": "Llama_3.1 8B"}
    assert find_differences(TRAINING, other) == ()


def test_two_names_of_one_public_model_are_one_model() -> None:
    one = TRAINING | {"model.model_family": "meta-llama/Llama-3.1-8B"}
    other = TRAINING | {"model.model_family": "Llama-3.1-8B"}
    assert find_differences(one, other) == ()


def test_rounded_parameter_counts_agree() -> None:
    exact, rounded = ({**TRAINING, "model.architecture.num_params": n} for n in (8_030_261_248, 8e9))
    assert find_differences(exact, rounded) == ()
    assert find_differences(exact, {**TRAINING, "model.architecture.num_params": 7e9})


def test_a_field_under_study_may_differ_although_it_defines_the_workload() -> None:
    found = judge_comparability(TRAINING, TRAINING | {"model.precision": "fp8"}, study=["precision"])
    assert (found.verdict, [each.field for each in found.studied]) == ("comparable", ["model.precision"])


def test_a_field_under_study_need_not_be_known() -> None:
    other = {key: value for key, value in TRAINING.items() if key != "data.seq_len"}
    assert judge_comparability(TRAINING, other, study=["data.seq_len"]).verdict == "comparable"


def test_one_variable_of_an_environment_is_recognised_by_name() -> None:
    found = find_differences(TRAINING | {"framework.env.NCCL_ALGO": "Ring"}, TRAINING)
    assert [each.field for each in found] == ["framework.env.NCCL_ALGO"]


def test_a_local_batch_is_compared_as_the_global_one() -> None:
    plan = {"Model-executor": {"model_plan_parallelization": {"dp_replicate": 2, "dp_shard": 4}}}
    local = {"workload": {"data": {"batch_size": 4, "batch_size_scope": "local"}}, **plan}
    whole = {"workload": {"data": {"batch_size": 32, "batch_size_scope": "global"}}, **plan}
    one, other = (fields_of(card_in_mapping(each).value) for each in (local, whole))
    assert one["data.global_batch_size"] == 32  # 4 sequences x 2 x 4 data-parallel ranks
    assert [each for each in find_differences(one, other) if each.role == "workload"] == []


def test_facts_of_the_run_have_the_last_word() -> None:
    facts = Facts(global_batch_size=Fact(64, "run_metadata.json"))
    assert fields_of(card(batch_size=32), facts)["data.global_batch_size"] == 64
    assert fields_of(None, facts) == {"data.global_batch_size": 64}


def test_a_ranking_key_is_equal_for_one_workload_on_other_hardware() -> None:
    other = TRAINING | {"model.model_family": "LLAMA-3.1-8b", "hardware.device.model": "nvidia_h100"}
    assert comparison_key(TRAINING) == comparison_key(other)
    assert len({comparison_key(TRAINING), comparison_key(TRAINING | {"data.dataset": "c4"})}) == 2


def test_a_field_is_known_by_its_end() -> None:
    assert known_field("precision") == "model.precision"
    assert known_field("data.seq_len") == "data.seq_len"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("presicion", "did you mean precision"),
        ("version", "framework.version or communication_library"),
        ("contributor", "unknown field"),
    ],
)
def test_a_field_that_is_none_is_refused_with_a_hint(name: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        known_field(name)
    assert said in str(refused.value)


def test_parameter_counts_agree_up_to_the_share_of_the_larger() -> None:
    rule = field_rules()["model.architecture.num_params"]
    assert rule.rounded == 0.05
    assert agree(rule, 100, 100 * (1 - rule.rounded))
    assert agree(rule, 100 * (1 - rule.rounded), 100)
    assert not agree(rule, 100, 99.9 * (1 - rule.rounded))
    assert agree(rule, -100, -100)
    assert not agree(rule, 100, -100)
    exact = field_rules()["data.seq_len"]
    assert not agree(exact, 1000, 1001)


def test_lists_agree_in_any_order_and_spelling() -> None:
    rule = field_rules()["data.seq_len"]
    assert agree(rule, ["Ring", "tree "], ["Tree", "ring"])
    assert not agree(rule, ["Ring", "tree"], ["ring"])


def test_fields_are_listed_workload_first_in_the_order_of_the_rules() -> None:
    one = TRAINING | {"framework.version": "1", "parallelism.tp": 1}
    other = TRAINING | {
        "framework.version": "2",
        "parallelism.tp": 2,
        "data.seq_len": 1,
        "model.precision": "x",
    }
    found = [each.field for each in find_differences(one, other)]
    assert found[:2] == ["model.precision", "data.seq_len"]
    assert sorted(found[2:], key=list(field_rules()).index) == found[2:]
    # what one side does not state about the workload is unknown, and no difference
    assert find_differences(TRAINING, {}) == ()


def test_empty_lists_and_values_of_a_card_are_no_fields() -> None:
    found = card_in_mapping(
        {"workload": {"data": {"seq_len": 8}}, "Model-executor": {"protocol_selection": ["LL", "Simple"]}}
    ).value
    assert {name: value for name, value in fields_of(found).items() if "hardware" not in name} == {
        "data.seq_len": 8,
        "protocols": ["LL", "Simple"],
    }


def test_validation_reports_what_keeps_a_run_from_being_ranked(tmp_path: Path) -> None:
    example = (
        Path(__file__).resolve().parents[2] / "examples" / "runs" / "megatron-tp8-a100" / "workload_card.yaml"
    )
    assert validate(str(example)).issues == []
    lines = example.read_text(encoding="utf-8").splitlines()
    lengths = [line for line in lines if line.strip().startswith(("input_len", "output_len"))]
    text = "\n".join(line for line in lines if line not in lengths)
    (tmp_path / "workload_card.yaml").write_text(text, encoding="utf-8")
    [issue] = validate(str(tmp_path / "workload_card.yaml")).issues
    fields = fields_of(card_in_text(text).value)
    assert unranked_reason(fields) == "the card lacks data.input_len, data.output_len"
    assert issue.message.endswith(unranked_reason(fields))
    assert (issue.severity, issue.code) == ("note", "card-unranked")
    assert issue.fix == "write workload.data.input_len, workload.data.output_len"
