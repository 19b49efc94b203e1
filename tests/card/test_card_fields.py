"""Declared fields: their hints, their limits, and how they are called."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from ccl_bench.card import Card, model
from ccl_bench.card.fields import entry, hint, is_address, is_literal, unit_of
from ccl_bench.card.sections import field_names, file_path, leaf_paths, meaning, near_miss_warner, value_type
from ccl_bench.card.yaml_tree import IssueLog


def test_a_field_carries_its_hints_and_is_absent_by_default() -> None:
    plain = entry("what it is")
    assert (plain.default, plain.default_factory, plain.examples, plain.alias) == (None, None, None, None)
    assert (unit_of(plain), hint(plain, "units"), hint(plain, "also"), is_literal(plain)) == (
        "",
        [],
        [],
        False,
    )
    rich = entry(
        "what it is", key="k", unit="GB", units=("gigabytes",), also=("a", "b"), examples=(2, 3), literal=True
    )
    assert (rich.alias, rich.examples, is_literal(rich)) == ("k", [2, 3], True)
    assert (unit_of(rich), hint(rich, "units"), hint(rich, "also")) == ("GB", ["GB", "gigabytes"], ["a", "b"])
    assert hint(entry("what it is", units=("x",)), "units") == ["x"]


def test_a_field_may_have_another_default() -> None:
    assert entry("what it is", default=7).default == 7
    made_anew = entry("what it is", default_factory=dict)
    assert made_anew.default_factory is dict
    assert made_anew.is_required() is False


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("Count", (1, 1_000_000_000), (0, 1_000_000_001)),
        ("Parameters", (1, 10_000_000_000_000_000), (0, 10_000_000_000_000_001)),
        ("Positive", (1e-9, 0.5, 1_000_000_000.0), (0.0, -1.0, 1_000_000_001.0)),
    ],
)
def test_limits_of_numbers_may_be_met_and_not_passed(
    name: str, accepted: tuple[float, ...], refused: tuple[float, ...]
) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(getattr(model, name))
    for number in accepted:
        assert adapter.validate_python(number) == number
    for number in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(number)


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (("version",), "version"),
        (("workload", "model", "is_moe"), "workload.model.moe"),
        (("metric_source", "traces", 1), "metric_source.traces"),
        (("executor", "framework", "env", "A"), "Model-executor.framework.env"),
        (("workload", "data", "dataset", "x", "y"), "workload.data.dataset"),
    ],
)
def test_the_place_of_a_value_is_that_of_its_field(names: tuple[int | str, ...], path: str) -> None:
    assert file_path(Card, names) == path


def test_the_unit_is_part_of_the_advice() -> None:
    assert meaning(Card, ("workload", "data", "seq_len")).endswith("tokens in one sequence, in tokens")
    assert meaning(Card, ("metric_source", "traces", 2)).endswith("kinds of trace")


def test_a_field_goes_by_its_key_and_other_names_in_any_spelling() -> None:
    names = field_names(model.Accelerators)
    assert (names["total_count"], names["num_nodes"], names["model"]) == (
        "device_count",
        "node_count",
        "model",
    )
    assert "device_count" not in names
    assert field_names(Card)["model_executor"] == field_names(Card)["executor"] == "executor"


def test_values_are_all_that_have_no_parts() -> None:
    paths = leaf_paths(model.Hardware)
    assert paths[:3] == [
        "network_topo.topology",
        *(f"network_topo.bandwidth_gbps.{x}" for x in ("scale_out", "scale_up")),
    ]
    assert paths[-2:] == ["driver_version", "price_per_device_hour"]
    assert "network_topo" not in paths
    assert value_type(Card.model_fields["version"]) is int


# Likeness is twice the letters in common over all: 2 x 7 / 15 = 0.93, 2 x 4 / 10 = 0.8, 2 x 4 / 11 = 0.73.
@pytest.mark.parametrize(
    ("path", "close"),
    [
        ("a.b.seq-lenn", "seq_len"),
        ("a.abtype", "type"),
        ("a.abctype", ""),
        ("seqlen.odd", ""),
        ("a.topologie", "topology"),
    ],
)
def test_only_likely_slips_are_reported_of_formats_that_may_hold_any_key(path: str, close: str) -> None:
    log = IssueLog("x")
    near_miss_warner(Card, log)(path, "is unknown", line=3)
    fixes = [(issue.path, issue.fix, issue.line) for issue in log.entries]
    assert fixes == ([(path, f"did you mean {close}?", 3)] if close else [])


@pytest.mark.parametrize(
    "url", ["https://x.org/a b", "https://x.org/\t", "https://x.org/<b>", 'https://x.org/"', "https://x\x00.org"]
)  # fmt: skip
def test_an_address_holds_nothing_that_ends_a_link(url: str) -> None:
    assert not is_address(url)
