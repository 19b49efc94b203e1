"""The tree of a file: what the parser finds, where it finds it, and what it refuses."""

from __future__ import annotations

import datetime as dt

import pytest
from card_examples import changed

from ccl_bench.base.errors import InputError
from ccl_bench.card import Severity, card_in_mapping, card_in_text, yaml_tree
from ccl_bench.card.yaml_tree import (
    IssueLog,
    MappingEntry,
    MappingNode,
    ScalarNode,
    SequenceNode,
    mapping_of,
    node_at,
    node_of,
    replaced_at,
    yaml_mapping,
)

PLAN = "Model-executor.model_plan_parallelization"


def issues_of(text: str) -> list[tuple[str, Severity, int | None]]:
    """Return path, severity and line of all issues but missing values."""
    issues = card_in_text(text).issues
    return [
        (issue.path, issue.severity, issue.line)
        for issue in issues
        if not issue.message.startswith("is missing")
    ]


def scalar(text: str) -> ScalarNode:
    return ScalarNode(text, text)


def test_plain_data_becomes_a_tree_without_lines() -> None:
    day = dt.date(2026, 1, 2)
    assert node_of({"a": [1, None, "x"], "b": (True,), 3: day}) == MappingNode(
        (
            MappingEntry("a", SequenceNode((ScalarNode(1, "1"), ScalarNode(None, "None"), scalar("x")))),
            MappingEntry("b", SequenceNode((ScalarNode(True, "True"),))),
            MappingEntry("3", scalar("2026-01-02")),
        )
    )


def test_issues_of_plain_data_have_no_line() -> None:
    data = {"workload": {"data": {"seq_len": "x"}}, "metric_source": {"traces": ["odd"]}, "version": 2}
    issues = card_in_mapping(data).issues
    assert len(issues) > 3
    assert {issue.line for issue in issues} == {None}


def test_lines_of_empty_values_are_those_of_their_keys() -> None:
    root = yaml_mapping("a:\n\n# c\nb:\n", IssueLog())
    assert [entry.node.line for entry in root.entries] == [1, 4]


def test_issues_come_in_the_order_of_lines_and_those_without_last() -> None:
    text = "version: 2\nworkload:\n  data: {seq_len: x, batch_size: y}\nodd: 1\n"
    lines = [issue.line for issue in card_in_text(text).issues]
    known = [line for line in lines if line is not None]
    assert known == sorted(known)
    assert set(known) >= {1, 3, 4}
    assert lines == known + [None] * (len(lines) - len(known))
    assert None in lines


def test_issues_without_a_line_come_last_in_the_order_of_recording() -> None:
    log = IssueLog("x")
    log.locate("late", 7)
    log.locate("late", 2)
    log.locate("nowhere", None)
    for path, line in (("a", None), ("b", 5), ("nowhere", None), ("late", None), ("c", 1), ("d", 5)):
        log.note(path, "m", line=line)
    assert [issue.path for issue in log.in_order()] == ["c", "b", "d", "late", "a", "nowhere"]
    assert [issue.line for issue in log.in_order()] == [1, 5, 5, 7, None, None]


def test_a_variable_of_nothing_is_none() -> None:
    data = {"Model-executor": {"framework": {"env": {"A": None, "B": "1", "C": 2}}}}
    assert card_in_mapping(data).value.framework.env == {"B": "1", "C": "2"}


def test_a_node_is_found_below_keys_that_are_written_once() -> None:
    root = yaml_mapping("a: {b: 1, c: 2, c: 3}\nd: [4]\n", IssueLog())
    assert node_at(root, ("a", "b")) == ScalarNode(1, "1", 1)
    assert node_at(root, ()) is root
    assert node_at(root, ("a", "c")) is node_at(root, ("a", "x")) is node_at(root, ("d", "4")) is None


def test_a_node_is_replaced_whatever_it_was() -> None:
    root = mapping_of({"a": {"b": {"x": 1}, "c": "2"}, "d": "3"})
    new = scalar("new")
    assert replaced_at(root, ("a", "b"), new) == mapping_of({"a": {"b": "new", "c": "2"}, "d": "3"})
    assert replaced_at(root, ("d",), new) == mapping_of({"a": {"b": {"x": 1}, "c": "2"}, "d": "new"})
    assert replaced_at(root, ("d", "e"), new) == mapping_of({"a": {"b": {"x": 1}, "c": "2"}, "d": "new"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "is empty"), ("# c\n", "is empty"), ("a\n", "no mapping"), ("- a\n", "no mapping")],
)
def test_an_empty_file_is_told_from_one_of_another_kind(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        card_in_text(text)


def test_a_file_is_refused_at_the_value_that_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_tree, "MAX_NODES", 6)
    # the key and the items of lines 2 to 6 are six values already
    with pytest.raises(InputError, match="more than 6 values") as refused:
        card_in_text("a:\n- x\n- x\n- x\n- x\n- x\n- x\n- x\n", file="card.yaml")
    assert refused.value.where == "card.yaml:7"
    # the file, its key, the list and its items
    assert card_in_text("a:\n- x\n- x\n- x\n").value.version is None
    with pytest.raises(InputError):
        card_in_text("a:\n- x\n- x\n- x\n- x\n")


@pytest.mark.parametrize(
    ("tagged", "traces"),
    [
        ("!!seq [json]", ("json",)),
        ("! [json]", ("json",)),
        ("!!python/object/new:x [json]", ()),
        ("!x [json]", ()),
        ("[!!str json]", ("json",)),
        ("[!x json, nsys]", ("nsys",)),
        ("!!map {a: json}", ()),
    ],
)
def test_tags_of_the_core_schema_change_nothing_and_others_are_refused(
    tagged: str, traces: tuple[str, ...]
) -> None:
    reading = card_in_text(f"workload: !!map {{}}\nmetric_source: {{traces: {tagged}}}\n")
    assert reading.value.metric_source.traces == traces
    assert bool(reading.errors) is ("x" in tagged or "!!map" in tagged)


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', 'a: "\\U00110000"'])
def test_a_character_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not valid YAML"):
        card_in_text(text)


def test_the_parser_in_c_is_not_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ruamel.yaml.main.CParser", object)
    assert card_in_text("version: 1\n").value.version == 1


def test_numbers_that_are_not_written_as_text_need_no_quotes_to_be_the_same() -> None:
    line = "    seq_len: 8192"
    at = changed(line, line).splitlines().index(line) + 1
    path = "workload.data.seq_len"
    # the first counts: that one in quotes, which is noted, or the plain one
    text = changed(line, f'{line}\n    seq_len: "8192"')
    assert issues_of(text) == [(path, Severity.WARNING, at + 1)]
    text = changed(line, f'    seq_len: "8192"\n{line}')
    assert sorted(issues_of(text)) == [(path, Severity.NOTE, at), (path, Severity.WARNING, at + 1)]
    assert card_in_text(text).value.data.seq_len == 8192


@pytest.mark.parametrize(
    ("names", "severity", "name"),
    [
        (("NCCL", "NCCL", "NCCL"), Severity.WARNING, "NCCL"),
        (("NCCL", "RCCL", "NCCL"), Severity.ERROR, None),
        (("NCCL", "RCCL", "Gloo"), Severity.ERROR, None),
        (("NCCL", "", "[NCCL]"), Severity.ERROR, None),
    ],
)
def test_a_key_that_is_written_again_is_reported_at_its_last_line(
    names: tuple[str, ...], severity: Severity, name: str | None
) -> None:
    line = "    name: NCCL"
    text = changed(line, "\n".join(f"    name: {each}" for each in names))
    (issue,) = issues_of(text)
    first = text.splitlines().index(line) + 1
    assert issue == ("Model-executor.communication_library.name", severity, first + 2)
    assert card_in_text(text).value.executor.communication_library.name == name


def test_repetitions_that_all_say_nothing_are_no_mistake() -> None:
    assert issues_of(changed("    name: NCCL", "    name:\n    name: N/A\n    name: ~")) == []


@pytest.mark.parametrize(
    ("written", "is_of_several"), [("[8192]", False), ("[1, 2]", True), ("[]", False), ("{a: 1}", False)]
)
def test_a_list_of_several_values_is_told_that_a_card_describes_one_run(
    written: str, is_of_several: bool
) -> None:
    (error,) = card_in_text(changed("seq_len: 8192", f"seq_len: {written}")).errors
    assert ("one run" in error.fix) is is_of_several


def test_an_item_of_a_list_is_reported_at_its_own_line() -> None:
    text = changed("    - nsys\n    - json\n", "    - nsys\n    -\n    - odd\n    - [x]\n    - even\n")
    first = text.splitlines().index("    - nsys") + 1
    traces = "metric_source.traces"
    # what says nothing is no item of the list that the checks see; the parser's third item is a list
    assert issues_of(text) == [
        (f"{traces}[1]", Severity.WARNING, first + 2),
        (f"{traces}[3]", Severity.ERROR, first + 3),
        (f"{traces}[2]", Severity.WARNING, first + 4),
    ]


def test_a_key_that_is_understood_one_level_too_high_is_noted_and_nothing_else() -> None:
    text = changed(
        "    name: torchtitan\n    compiler_tool_selection: plain_pytorch\n",
        "    name: vllm\n  compiler_tool_selection: triton\n",
    )
    (issue,) = issues_of(text)
    assert issue[:2] == ("Model-executor.compiler_tool_selection", Severity.NOTE)
    assert card_in_text(text).value.framework.compiler == "triton"


def test_a_part_that_is_written_twice_is_an_error_also_if_it_adopts_a_key() -> None:
    text = "Model-executor:\n  framework: vllm\n  framework: sglang\n  compiler_tool_selection: triton\n"
    reading = card_in_text(text)
    assert [issue.path for issue in reading.errors] == ["Model-executor.framework"]
    assert reading.value.framework.name is None
