"""Reading workload cards: what is understood, what is reported, and what is left absent."""

from __future__ import annotations

import pytest
from card_examples import FULL_CARD, changed

from ccl_bench.base.errors import InputError
from ccl_bench.card import (
    AcceleratorType,
    Card,
    Phase,
    Precision,
    Severity,
    card_in_mapping,
    card_in_text,
    is_card,
    is_card_file,
    json_schema,
    read_card,
    template,
)
from ccl_bench.card.fields import is_address
from ccl_bench.card.yaml_tree import plain_value, shown


def issues_of(text, path):
    return [issue for issue in card_in_text(text).issues if issue.path == path]


def only_issue(text, path):
    (issue,) = issues_of(text, path)
    return issue


def test_a_correct_card_has_no_issues():
    assert card_in_text(FULL_CARD).issues == []


def test_every_field_of_a_card_reaches_its_attribute():
    card = card_in_text(FULL_CARD).value
    assert card.model.phase is Phase.TRAINING
    assert card.model.is_moe is False
    assert card.model.precision is Precision.BF16
    assert card.model.steps == 5
    assert card.model.architecture.num_params == 8030261248
    assert card.data.seq_len == 8192
    assert card.hardware.network.bandwidth.scale_out == 200
    assert card.hardware.network.bandwidth.scale_up == 2400
    assert card.hardware.device.type is AcceleratorType.GPU
    assert card.hardware.device.devices_per_node == 4
    assert card.parallelism.dp_shard == 2
    assert card.parallelism.microbatch_size == 2
    assert card.executor.communication_library.env == {"NCCL_IB_QPS_PER_CONNECTION": "8"}
    assert card.executor.protocols == ("rocev2", "p2p")
    assert card.metric_source.traces == ("nsys", "json")
    assert card.metric_source.metrics_specific_trace == ()
    assert card.description == "Pre-training on four nodes."


def test_a_version_keeps_its_last_zero():
    assert card_in_text(FULL_CARD).value.executor.communication_library.version == "2.20"


def test_a_number_written_as_text_is_read_with_a_note():
    text = changed("batch_size: 32", 'batch_size: "32"')
    assert card_in_text(text).value.data.batch_size == 32
    assert only_issue(text, "workload.data.batch_size").severity is Severity.NOTE


@pytest.mark.parametrize("written", ["8192 tokens", "8,192", "8_192", "8.192e3", "8192.0"])
def test_spellings_of_a_number_with_one_meaning_are_read(written):
    assert card_in_text(changed("seq_len: 8192", f"seq_len: {written}")).value.data.seq_len == 8192


@pytest.mark.parametrize(
    "written",
    [
        "8k",
        "about 8192",
        "8192 bytes",
        "81,92",
        "2.5",
        "-1",
        "0",
        ".nan",
        ".inf",
        "true",
        "[8192]",
        "{a: 1}",
        "9" * 500,
        "1e999",
    ],
)
def test_a_number_that_would_have_to_be_guessed_is_absent_with_an_error(written):
    text = changed("seq_len: 8192", f"seq_len: {written}")
    assert card_in_text(text).value.data.seq_len is None
    assert only_issue(text, "workload.data.seq_len").severity is Severity.ERROR


@pytest.mark.parametrize("written", ["", "N/A", "n/a", '""', "null", "'-'", "~", "TBD", "unknown"])
def test_the_many_ways_to_say_nothing_are_absent_without_an_error(written):
    reading = card_in_text(changed("batch_size: 32", f"batch_size: {written}"))
    assert reading.value.data.batch_size is None
    assert reading.errors == []


@pytest.mark.parametrize("key", ["model-executor", "model_executor", "Model Executor"])
def test_other_spellings_of_model_executor_are_read_with_a_note(key):
    reading = card_in_text(changed("Model-executor:", f"{key}:"))
    assert reading.value.parallelism.tp == 4
    assert [issue.severity for issue in reading.issues] == [Severity.NOTE]


def test_an_unknown_key_is_a_warning_that_names_the_nearest_one():
    issue = only_issue(changed("batch_size: 32", "batchsize: 32"), "workload.data.batchsize")
    assert issue.severity is Severity.WARNING
    assert "batch_size" in issue.fix


def test_a_key_in_the_wrong_place_is_reported_where_it_belongs():
    text = changed("    dataset: c4", "    dataset: c4\n    num_layers: 3")
    assert "workload.model.model_arch.num_layers" in only_issue(text, "workload.data.num_layers").fix


def test_architecture_written_one_level_too_high_is_understood():
    reading = card_in_text("workload: {model: {num_params: 8000000000, num_heads: 32}, data: {}}")
    assert reading.value.model.architecture.num_params == 8_000_000_000
    assert reading.value.model.architecture.num_heads == 32


def test_a_compiler_written_beside_the_framework_is_understood():
    reading = card_in_text("Model-executor: {framework: vllm, compiler_tool_selection: triton}\nworkload: {}")
    assert reading.value.framework.name == "vllm"
    assert reading.value.framework.compiler == "triton"


def test_a_library_written_as_one_word_is_its_name():
    reading = card_in_text("Model-executor: {communication_library: NCCL}\nworkload: {}")
    assert reading.value.executor.communication_library.name == "NCCL"


def test_a_single_text_where_a_list_belongs_is_split():
    assert card_in_text("metric_source: {traces: 'nsys, json'}").value.metric_source.traces == (
        "nsys",
        "json",
    )


def test_every_mistake_is_reported_at_once_with_its_line():
    text = (
        changed("seq_len: 8192", "seq_len: long")
        .replace("tp: 4", "tp: -4")
        .replace("precision: bf16", "precision: b16")
    )
    errors = {issue.path: issue.line for issue in card_in_text(text).errors}
    lines = text.splitlines()
    assert errors == {
        "workload.model.precision": lines.index("    precision: b16") + 1,
        "workload.data.seq_len": lines.index("    seq_len: long") + 1,
        "Model-executor.model_plan_parallelization.tp": lines.index("    tp: -4") + 1,
    }


def test_an_issue_shows_file_line_path_reason_and_fix(written):
    path = written("workload_card.yaml", "workload:\n  model:\n    phase: dancing\n")
    (issue,) = read_card(path).errors
    assert str(issue) == (
        f"error: {path}:3: workload.model.phase: dancing is not a known value\n"
        "  fix: write one of inference, training"
    )


@pytest.mark.parametrize(
    ("written", "meant"), [("bfloat16", "bf16"), ("FP16", "fp16"), ("float8_e4m3fn", "fp8")]
)
def test_spellings_of_a_precision_are_read_with_a_note(written, meant):
    text = changed("precision: bf16", f"precision: {written}")
    assert card_in_text(text).value.model.precision == meant
    assert only_issue(text, "workload.model.precision").severity is Severity.NOTE


@pytest.mark.parametrize("written", ["bf16-mixed", "bf16/fp8", "16 bit", "fast"])
def test_a_precision_that_could_mean_two_things_is_absent(written):
    assert card_in_text(changed("precision: bf16", f"precision: {written}")).value.model.precision is None


def test_serving_is_inference():
    assert card_in_text(changed("phase: training", "phase: serving")).value.model.phase is Phase.INFERENCE


def test_bandwidths_in_falling_order_are_not_used():
    text = changed("- 200  # between nodes\n        - 2400  # NVLink", "- 2400\n        - 200")
    reading = card_in_text(text)
    assert reading.value.hardware.network.bandwidth.scale_out is None
    assert reading.value.hardware.network.bandwidth.scale_up is None
    assert only_issue(text, "workload.hardware.network_topo.bandwidth_gbps").severity is Severity.ERROR


def test_bandwidths_may_be_named_instead_of_ordered():
    card = card_in_text(
        "workload: {hardware: {network_topo: {bandwidth_gbps: {scale_out: 400, scale_up: 200}}}}"
    ).value
    assert (card.hardware.network.bandwidth.scale_out, card.hardware.network.bandwidth.scale_up) == (400, 200)


@pytest.mark.parametrize(
    ("pair", "expected"), [("[N/A, 800]", (None, 800)), ("[TBD, TBD]", (None, None)), ("[]", (None, None))]
)
def test_a_bandwidth_that_is_not_known_is_absent(pair, expected):
    reading = card_in_text(f"workload: {{hardware: {{network_topo: {{bandwidth_gbps: {pair}}}}}}}")
    bandwidth = reading.value.hardware.network.bandwidth
    assert (bandwidth.scale_out, bandwidth.scale_up) == expected
    assert reading.errors == []


@pytest.mark.parametrize("written", ["200", "[200]", "[1, 2, 3]", "[25 GB/s, 300 GB/s]"])
def test_a_bandwidth_of_unclear_link_or_unit_is_not_used(written):
    reading = card_in_text(f"workload: {{hardware: {{network_topo: {{bandwidth_gbps: {written}}}}}}}")
    assert reading.value.hardware.network.bandwidth.scale_out is None
    assert reading.errors


def test_a_key_written_twice_with_different_content_is_absent():
    text = changed("    name: NCCL", "    name: NCCL\n    name: NVSHMEM")
    assert card_in_text(text).value.executor.communication_library.name is None
    assert "2 times" in only_issue(text, "Model-executor.communication_library.name").message


def test_a_key_written_twice_with_the_same_content_is_a_warning():
    text = changed("    name: NCCL", "    name: NCCL\n    name: NCCL")
    assert card_in_text(text).value.executor.communication_library.name == "NCCL"
    assert only_issue(text, "Model-executor.communication_library.name").severity is Severity.WARNING


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "meta-llama/Llama", "https://", "http://a b", 'https://x/">', "data:x,y"]
)
def test_a_malformed_model_address_is_not_used(url):
    reading = card_in_text(changed("https://huggingface.co/meta-llama/Llama-3.1-8B", f"'{url}'"))
    assert reading.value.hf_url is None
    assert [issue.path for issue in reading.errors] == ["hf_url"]


def test_traces_may_be_named_by_a_path():
    assert (
        card_in_text(changed("trace_url: #", "trace_url: /data/traces #")).value.trace_url == "/data/traces"
    )


def test_merge_keys_and_aliases_are_followed():
    card = card_in_text("workload:\n  data: &d {seq_len: 8}\n  model: {}\nx: *d\n").value
    assert card.data.seq_len == 8
    assert (
        card_in_text("base: &b {seq_len: 8}\nworkload: {data: {<<: *b, batch_size: 2}}").value.data.seq_len
        == 8
    )


def test_a_second_document_is_an_error_and_the_first_is_read():
    reading = card_in_text(f"{FULL_CARD}---\nother: 1\n")
    assert reading.value.parallelism.tp == 4
    assert "more than one YAML document" in reading.errors[0].message


def test_a_card_from_plain_data_equals_the_card_from_its_text():
    data = card_in_text(FULL_CARD).value.model_dump(by_alias=True)
    assert card_in_mapping(data).value == card_in_text(FULL_CARD).value


def test_a_card_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Card().version = 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just text",
        "- a\n- b",
        "42",
        "# only a comment",
        "a: [1",
        "a: b: c",
        "\tx: 1",
        "%YAML 3.0\n---\na: 1",
    ],
)
def test_a_file_without_a_mapping_is_refused(text):
    with pytest.raises(InputError):
        card_in_text(text, file="card.yaml")


def test_a_refusal_names_file_and_line():
    with pytest.raises(InputError) as refused:
        card_in_text("a: 1\nb: [\n", file="card.yaml")
    assert str(refused.value).startswith("card.yaml:3:1: is not valid YAML")


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(InputError):
            read_card(path)


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "card.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + FULL_CARD.replace("\n", "\r\n").encode())
    assert read_card(path).issues == []


def test_a_card_is_recognised_by_its_keys():
    assert is_card({"workload": {"model": {}}})
    assert is_card({"model-executor": {}, "metric_source": {}})
    assert not is_card({"workload": "nginx"})
    assert not is_card({"apiVersion": "v1", "metadata": {}, "workload": {"containers": []}})
    assert not is_card(["workload"])
    assert not is_card(None)


def test_a_card_file_is_recognised_and_other_files_are_not(written):
    assert is_card_file(written("any name.yaml", FULL_CARD))
    assert not is_card_file(written("other.yaml", "services: {web: {image: x}}"))
    assert not is_card_file(written("broken.yaml", "a: [1"))


def test_the_json_schema_accepts_a_card_and_refuses_a_wrong_one():
    from jsonschema import Draft202012Validator

    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    assert {"version", "workload", "Model-executor"} <= schema["properties"].keys()
    data = card_in_text(FULL_CARD).value.model_dump(by_alias=True, mode="json")
    validator = Draft202012Validator(schema)
    assert list(validator.iter_errors(data)) == []
    data["workload"]["data"]["seq_len"] = "long"
    assert [error.json_path for error in validator.iter_errors(data)] == ["$.workload.data.seq_len"]


def test_every_field_of_the_schema_has_a_description():
    for name, part in json_schema()["$defs"].items():
        for key, field in part.get("properties", {}).items():
            assert field.get("description"), f"{name}.{key}"


def test_the_empty_template_reads_without_errors():
    reading = card_in_text(template())
    assert reading.value == Card(version=1)
    assert reading.errors == []


def test_an_empty_repetition_of_a_key_changes_nothing():
    reading = card_in_text(changed("    name: NCCL", "    name: NCCL\n    name:"))
    assert reading.value.executor.communication_library.name == "NCCL"
    assert reading.issues == []


@pytest.mark.parametrize(
    ("line", "largest"),
    [
        ("num_layers: {}", 10**9),
        ("num_params: {}", 10**16),
        ("num_shared_experts: {}", 10**6),
    ],
)
def test_numbers_that_no_model_has_are_errors(line, largest):
    def read(number):
        text = f"version: 1\nworkload:\n  model:\n    model_arch:\n      {line.format(number)}\n"
        return {issue.severity for issue in card_in_text(text).issues if issue.path.endswith(line[:-4])}

    assert Severity.ERROR not in read(largest)
    assert read(largest + 1) == {Severity.ERROR}


@pytest.mark.parametrize(("zeros", "is_read"), [(35, True), (36, False)])
def test_numbers_of_more_than_40_letters_are_not_read(zeros, is_read):
    reading = card_in_text(changed("seq_len: 8192", f"seq_len: '8192.{'0' * zeros}'"))
    assert (reading.value.data.seq_len == 8192) is is_read


@pytest.mark.parametrize(("length", "is_cut"), [(60, False), (61, True)])
def test_values_of_more_than_60_letters_are_quoted_in_short(length, is_cut):
    assert shown("x" * length) == "x" * 60 + "…" * is_cut


@pytest.mark.parametrize(("depth", "is_read"), [(62, True), (63, False)])
def test_cards_are_nested_64_levels_deep_at_most(depth, is_read):
    # the whole file and `other` are two of them
    text = f"version: 1\nother: {{a: {'[' * depth}{']' * depth}}}\n"
    if is_read:
        card_in_text(text)
        return
    with pytest.raises(InputError, match="more than 64 levels deep"):
        card_in_text(text)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("yes", True), ("On", True), ("enabled", True), ("'true'", True), ("no", False), ("OFF", False),
     ("disabled", False), ("'False'", False), ("maybe", None), ("1", None)],
)  # fmt: skip
def test_words_for_true_and_false_are_read_with_a_note(written, meant):
    text = changed("moe: false", f"moe: {written}")
    assert card_in_text(text).value.model.is_moe is meant
    severities = [issue.severity for issue in issues_of(text, "workload.model.moe")]
    assert severities == [Severity.ERROR if meant is None else Severity.NOTE]


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("https://x.org", True), ("s3://bucket/a", True), ("file:///a", True), ("https:///a", False),
        ("http://[x", False), ("ftp://x.org", False), ("https://x.org/a b", False), ("x.org", False),
    ],
)  # fmt: skip
def test_an_address_has_a_known_scheme_and_a_host(url, is_one):
    assert is_address(url) is is_one


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-12", -12), ("0o17", 15), ("0x1f", 31), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0),
        ("-.inf", float("-inf")), ("+.INF", float("inf")), ("true", True), ("FALSE", False), ("null", None),
        ("", None), ("tRue", "tRue"), ("1_000", "1_000"), ("0b1", "0b1"), ("9" * 40, int("9" * 40)),
        ("9" * 41, "9" * 41),
    ],
)  # fmt: skip
def test_plain_values_are_those_of_yaml(text, value):
    found = plain_value(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("written", "gbit"),
    [
        ("200 Gbit/s", 200), ("200 gbit/s", None), ("200 Gbps", 200), ("200 Gb/s", 200), ("200 GB/s", None),
        ("200 Gibit/s", None), ("1,600 Gbit/s", 1600), ("16,00", None), ("1_600", 1600), ("+1.6e3", 1600),
    ],
)  # fmt: skip
def test_the_unit_of_a_link_is_read_to_the_letter(written, gbit):
    links = {"workload": {"hardware": {"network_topo": {"bandwidth_gbps": {"scale_up": written}}}}}
    assert card_in_mapping(links).value.hardware.network.bandwidth.scale_up == gbit


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("25 GB/s", "write 200: the field is in Gbit/s"),
        ("1,000 GBps", "write 8000: the field is in Gbit/s"),
        ("25 miles", "write the number alone in Gbps"),
    ],
)  # fmt: skip
def test_a_unit_of_bytes_alone_is_converted(written, fix):
    links = {"workload": {"hardware": {"network_topo": {"bandwidth_gbps": {"scale_up": written}}}}}
    assert card_in_mapping(links).errors[0].fix == fix
    data = {"workload": {"data": {"seq_len": "25 GB/s"}}}
    assert card_in_mapping(data).errors[0].fix == "write the number alone in tokens"


@pytest.mark.parametrize("written", ["8 TOKENS", "8 Tokens", "8tokens"])
def test_the_case_of_other_units_does_not_matter(written):
    assert card_in_mapping({"workload": {"data": {"seq_len": written}}}).value.data.seq_len == 8


@pytest.mark.parametrize(
    ("count", "listed", "more"), [(50, 50, None), (51, 50, "1 more keys"), (60, 50, "10 more keys")]
)
def test_fifty_unknown_keys_are_listed(count, listed, more):
    issues = card_in_mapping({"version": 1, **{f"odd{n}": 1 for n in range(count)}}).issues
    assert sum(issue.path.startswith("odd") for issue in issues) == listed
    assert [issue.message[: len(more)] for issue in issues if "more keys" in issue.message] == (
        [more] if more else []
    )


@pytest.mark.parametrize(
    ("mapping", "is_one"),
    [
        ({"workload": {"data": {}}}, True), ({"Workload": {"Hardware": None}}, True),
        ({"hf_url": "x", "trace_url": "y"}, True), ({"hf_url": "x"}, False), ({"workload": None}, False),
        ({"workload": {"image": 1}}, False), ({}, False), ({"workload": ["model", "data"]}, False),
        ({"workload": 8}, False), ({"workload": {}, "metric_source": {}}, True),
    ],
)  # fmt: skip
def test_one_part_of_a_workload_or_two_keys_of_a_card_are_enough(mapping, is_one):
    assert is_card(mapping) is is_one
