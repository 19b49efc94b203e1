"""Writing cards, and filling what a card leaves empty."""

from __future__ import annotations

from pathlib import Path

import pytest
from card_examples import FULL_CARD
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.card import (
    Card,
    card_in_mapping,
    card_in_text,
    card_text,
    fill,
    read_card,
    template,
    write_card,
)
from ccl_bench.card.filling import yaml_scalar

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "workload_card_template.yaml"
LIBRARY = "Model-executor.communication_library"


def test_the_template_in_the_repository_is_the_generated_one():
    assert TEMPLATE.read_text(encoding="utf-8") == template()
    assert (ROOT / "workloads" / TEMPLATE.name).samefile(TEMPLATE)


def test_an_empty_mapping_in_braces_is_filled(tmp_path):
    path = tmp_path / "card.yaml"
    path.write_text("Model-executor:\n  communication_library:\n    env: {}  # none yet\n    name: NCCL\n")
    fill(path, {f"{LIBRARY}.env": {"NCCL_DEBUG": "INFO", "NCCL_PROTO": "LL"}})
    library = read_card(path).value.executor.communication_library
    assert library.env == {"NCCL_DEBUG": "INFO", "NCCL_PROTO": "LL"}
    assert library.name == "NCCL"
    assert "# none yet" in path.read_text()


def test_a_card_survives_writing_and_reading(tmp_path):
    card = card_in_text(FULL_CARD).value
    write_card(card, tmp_path / "card.yaml")
    reading = read_card(tmp_path / "card.yaml")
    assert reading.value == card
    assert reading.issues == []


TEXTS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@given(text=TEXTS, name=TEXTS)
def test_any_text_in_a_card_survives_writing_and_reading(text, name):
    data = {
        "workload": {"data": {"dataset": text}},
        "Model-executor": {"communication_library": {"env": {name: text}}},
    }
    card = card_in_mapping(data).value
    assert card_in_text(card_text(card)).value == card


def test_a_mapping_is_written_as_it_was_laid_out(tmp_path):
    text = (
        "# a run\nworkload:\n  data:\n    seq_len: 1  # short\n"
        "metric_source:\n  traces:\n    - json\n    - 'nsys'\n"
        f"description: {'long ' * 60}line\n"
    )
    path = tmp_path / "card.yaml"
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    write_card(yaml.load(text), path)
    assert path.read_text() == text


def test_an_existing_file_is_not_overwritten_unless_allowed(tmp_path):
    path = tmp_path / "card.yaml"
    write_card(Card(version=1), path)
    with pytest.raises(UsageError, match="exists already"):
        write_card(Card(), path)
    write_card(Card(), path, overwrite=True)


def test_a_mapping_read_with_its_comments_keeps_them(tmp_path):
    mapping = YAML(typ="rt").load(FULL_CARD)
    mapping["contributor"] = "Grace Hopper"
    write_card(mapping, tmp_path / "card.yaml")
    text = (tmp_path / "card.yaml").read_text(encoding="utf-8")
    assert "# between nodes" in text
    assert "contributor: Grace Hopper" in text


def test_filling_changes_only_the_lines_it_fills(written):
    path = written("card.yaml", FULL_CARD)
    fill(path, {"trace_url": "https://example.org/t"})
    assert path.read_text(encoding="utf-8") == FULL_CARD.replace(
        "trace_url: # not published", "trace_url: https://example.org/t # not published"
    )


def test_a_value_that_is_there_is_kept_and_reported(written):
    path = written("card.yaml", FULL_CARD)
    filling = fill(path, {"workload.model.precision": "fp8"})
    assert filling.kept == ("workload.model.precision",)
    assert path.read_text(encoding="utf-8") == FULL_CARD


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hf_url", "https://huggingface.co/a/b"),
        ("description", 'two\nlines: with "quotes" # and more'),
        ("workload.model.moe", True),
        ("workload.data.seq_len", 4096),
        ("workload.hardware.network_topo.bandwidth_gbps.scale_up", 2400),
        ("workload.hardware.xpu_spec.num_nodes", 2),
        (f"{LIBRARY}.env", {"NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "1"}),
        ("metric_source.traces", ["json", "nsys"]),
        ("Model-executor.protocol_selection", []),
    ],
)
def test_filling_the_template_puts_the_value_where_it_is_read(tmp_path, name, value):
    path = tmp_path / "card.yaml"
    write_card(Card(version=1), path)
    fill(path, {name: value})
    found = read_card(path).value.model_dump(by_alias=True, mode="json")
    for key in name.split("."):
        found = found[key]
    assert found == value


def test_missing_parents_are_written(written):
    path = written("card.yaml", "workload:\n  model:\n    phase: training\n\n# the end\n")
    fill(path, {f"{LIBRARY}.name": "NCCL", "workload.data.seq_len": 8, "workload.model.precision": "bf16"})
    card = read_card(path).value
    assert (card.executor.communication_library.name, card.data.seq_len, card.model.precision) == (
        "NCCL",
        8,
        "bf16",
    )
    assert "# the end" in path.read_text(encoding="utf-8")


def test_another_spelling_of_a_key_is_filled_and_kept(written):
    path = written("card.yaml", "model-executor:\n  framework:\n    name:  # which\nworkload:\n")
    fill(path, {"Model-executor.framework.name": "vllm"})
    assert (
        path.read_text(encoding="utf-8")
        == "model-executor:\n  framework:\n    name: vllm  # which\nworkload:\n"
    )


def test_a_list_of_empty_items_is_filled_in_place(written):
    path = written("card.yaml", "metric_source:\n  traces:\n    -  # kind of trace\n")
    fill(path, {"metric_source.traces": ["json", "nsys"]})
    assert (
        path.read_text(encoding="utf-8")
        == "metric_source:\n  traces:\n    - json  # kind of trace\n    - nsys\n"
    )


BANDWIDTH = "workload.hardware.network_topo.bandwidth_gbps"


@pytest.mark.parametrize(
    ("items", "filled", "after"),
    [
        (["-  # out", "-"], ("scale_up", "scale_out"), ["- 50  # out", "- 900"]),
        (["- 100  # out", "-  # up"], ("scale_up",), ["- 100  # out", "- 900  # up"]),
        (["-  # out"], ("scale_out",), ["- 50  # out"]),
        (["- 450", "- 100"], (), ["- 450", "- 100"]),
    ],
)
def test_a_pair_in_a_list_is_filled_item_by_item(written, items, filled, after):
    head = "workload:\n  hardware:\n    network_topo:\n      bandwidth_gbps:\n"
    path = written("card.yaml", head + "".join(f"        {item}\n" for item in items))
    found = fill(path, {f"{BANDWIDTH}.scale_up": 900, f"{BANDWIDTH}.scale_out": 50})
    assert found.filled == tuple(f"{BANDWIDTH}.{name}" for name in filled)
    assert path.read_text(encoding="utf-8") == head + "".join(f"        {item}\n" for item in after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("traces: []  # kinds", "traces: [json, nsys]  # kinds"),
        ("traces: {}", "traces: [json, nsys]"),
        ("traces:", "traces: [json, nsys]"),
        ("traces: ~", "traces: [json, nsys]"),
        ("traces:\n    - json", None),
        ("traces: [json]", None),
        ("traces: chrome", None),
    ],
)
def test_a_list_is_filled_if_it_is_empty(written, before, after):
    path = written("card.yaml", f"metric_source:\n  {before}\n")
    assert bool(fill(path, {"metric_source.traces": ["json", "nsys"]}).filled) is (after is not None)
    assert path.read_text(encoding="utf-8") == f"metric_source:\n  {after or before}\n"


def test_a_list_with_one_empty_and_one_full_item_is_kept(written):
    text = "metric_source:\n  traces:\n    -\n    - json\n"
    path = written("card.yaml", text)
    assert fill(path, {"metric_source.traces": ["nsys"]}).filled == ()
    assert path.read_text(encoding="utf-8") == text


def test_missing_keys_are_written_behind_the_last_line_of_their_section(written):
    model = "workload:\n    model:\n        phase: training  # of two\n"
    data = "        # kinds\n\n\n    # data\n    data:\n        dataset: c4\n"
    path = written("card.yaml", model + data + "# end\n")
    fill(path, {"workload.model.precision": "bf16", "metric_source.traces": ["json"]})
    assert path.read_text(encoding="utf-8") == (
        f"{model}        precision: bf16\n{data}metric_source:\n  traces:\n    - json\n# end\n"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"), (7, "7"), (7.0, "7"), (7.5, "7.5"), (1e15, "1000000000000000.0"),
        (9e14, "900000000000000"), ("bf16", "bf16"), ("7", '"7"'), ("a b", "a b"), ("a ", '"a "'),
        ("true", '"true"'), ("http://x", "http://x"), ("a: b", '"a: b"'),
        ("\x7f\ufeff", '"\\U0000007f\\U0000feff"'),
    ],
)  # fmt: skip
def test_values_are_quoted_if_yaml_would_read_them_as_another_kind(value, text):
    assert yaml_scalar(value) == text


def test_not_available_is_replaced(written):
    path = written("card.yaml", "workload:\n  data:\n    dataset: N/A  # name\n")
    fill(path, {"workload.data.dataset": "c4"})
    assert path.read_text(encoding="utf-8") == "workload:\n  data:\n    dataset: c4  # name\n"


@pytest.mark.parametrize("text", ["workload: {data: {seq_len: }}\n", "workload:\n  data: {dataset: c4}\n"])
def test_a_style_that_cannot_be_filled_is_refused_and_the_file_stays(written, text):
    path = written("card.yaml", text)
    with pytest.raises(InputError, match="cannot be filled"):
        fill(path, {"workload.data.seq_len": 8})
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("text", ["workload: text\n", "workload:\n  data: text\n"])
def test_a_value_in_place_of_a_section_is_kept(written, text):
    path = written("card.yaml", text)
    assert fill(path, {"workload.data.seq_len": 8}).kept == ("workload.data.seq_len",)
    assert path.read_text(encoding="utf-8") == text


def test_an_unknown_path_is_wrong_usage_with_a_hint(written):
    with pytest.raises(UsageError) as refused:
        fill(written("card.yaml", FULL_CARD), {"workload.data.seqlen": 8})
    assert "workload.data.seq_len" in refused.value.fix


def test_a_hostile_file_is_refused_before_it_is_filled(written):
    path = written("card.yaml", "a: " + "[" * 1000)
    with pytest.raises(InputError):
        fill(path, {"hf_url": "https://x.org"})


@pytest.mark.parametrize("empty", [None, "", [], {}])
def test_an_empty_value_fills_nothing(written, empty):
    path = written("card.yaml", "workload:\n  data:\n    dataset:\n")
    assert fill(path, {"workload.data.dataset": empty}).filled == ()


FILLABLE = st.fixed_dictionaries(
    {},
    optional={
        "hf_url": st.just("https://huggingface.co/a/b"),
        "contributor": TEXTS,
        "workload.data.seq_len": st.integers(1, 10**6),
        "workload.model.model_arch.head_dim": st.integers(1, 512),
        f"{LIBRARY}.env": st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), TEXTS, max_size=2),
        "metric_source.traces": st.lists(st.sampled_from(["json", "nsys"]), max_size=3),
    },
)


@given(values=FILLABLE)
def test_whatever_is_filled_is_read_back(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "filled.yaml"
    path.write_text(template(), encoding="utf-8")
    expected = card_in_mapping(nested(values)).value
    fill(path, values)
    assert read_card(path).value == expected.model_copy(update={"version": 1})


def nested(values):
    root = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        inner = root
        for key in parents:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return root
