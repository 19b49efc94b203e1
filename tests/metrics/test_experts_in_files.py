"""`token_to_expert_assignment` of records that launchers write, on counts that can be followed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.token_to_expert_assignment import token_to_expert_assignment
from ccl_bench.side_files import ExpertTokens, MoeAssignments

NO_ROWS = pl.DataFrame(schema={"group": pl.String, "rank": pl.Int64, "received_rows": pl.Int64})
NO_GROUPS = pl.DataFrame(schema={"group": pl.String, "ambiguous": pl.Boolean})


def measured(*records: ExpertTokens, dropped: int | None = None, **stated: int) -> Any:
    facts = Facts(**{name: Fact(value, "card") for name, value in ({"ep": 2} | stated).items()})
    return token_to_expert_assignment(MoeAssignments(records, dropped), NO_ROWS, NO_GROUPS, facts)


def test_layers_are_added_up_and_listed_apart() -> None:
    # on two devices: 30 : 70 and 0 : 60 of two ranks, and 15 : 5; together 45 : 135
    found = measured(
        ExpertTokens((10, 20, 30, 40), rank=1, layer="a"),
        ExpertTokens((0, 0, 45, 15), rank=0, layer="a"),
        ExpertTokens((8, 7, 5, 0), rank=0, layer="b"),
        ExpertTokens((0, 0, 0, 0), rank=0, layer="c"),
        dropped=0,
    )
    assert found.value == pytest.approx(135 / 90)
    assert found.details == {
        "source": "moe_assignments*.json",
        "tokens_per_device": {"0": 45, "1": 135},
        "coefficient_of_variation_ratio": pytest.approx(45 / 90),
        "per_rank_tokens": {"0": 80, "1": 100},
        "tokens_per_expert": {"0": 18, "1": 27, "2": 80, "3": 55},
        "imbalance_over_experts_ratio": pytest.approx(80 / 45),
        "per_layer": {"a": pytest.approx(130 / 80), "b": pytest.approx(15 / 10)},
        "dropped_tokens_count": 0,
    }
    assert [*found.details["per_rank_tokens"]] == ["0", "1"]
    assert found.findings == []


def test_one_layer_is_not_listed_and_a_device_without_tokens_counts() -> None:
    found = measured(ExpertTokens((0, 12)), ExpertTokens((0, 3)))
    assert found.value == pytest.approx(2)
    assert found.details["tokens_per_device"] == {"0": 0, "1": 15}
    assert found.details.keys() == {"source", "tokens_per_device", "coefficient_of_variation_ratio"}
    layers = measured(ExpertTokens((0, 12), layer="a"), ExpertTokens((3, 0), layer="b"))
    assert layers.details["per_layer"] == {"a": 2, "b": 2}


def test_experts_are_listed_only_if_every_record_has_more_of_them_than_devices() -> None:
    by_expert, by_device = ExpertTokens((1, 2, 3, 6)), ExpertTokens((5, 4))
    found = measured(by_expert, by_device)
    # 1 + 2 + 5 and 3 + 6 + 4
    assert found.details["tokens_per_device"] == {"0": 8, "1": 13}
    assert "tokens_per_expert" not in found.details
    assert "tokens_per_expert" in measured(by_expert, by_expert).details


def test_experts_that_are_named_by_number_are_completed_to_the_highest_or_as_stated() -> None:
    named = [ExpertTokens(tokens, names_experts=True) for tokens in ((4, 0, 2), (1, 0, 0, 3), (5, 6))]
    listed = ExpertTokens((0, 1, 0, 0))
    found = measured(*named, listed)
    assert found.details["tokens_per_expert"] == {"0": 10, "1": 7, "2": 2, "3": 3}
    (finding,) = found.findings
    assert finding.code == "experts-assumed"
    assert finding.message.startswith("4 experts")
    assert "none above 3" in finding.message
    stated = measured(*named, num_experts=6)
    assert stated.details["tokens_per_expert"] == {"0": 10, "1": 6, "2": 2, "3": 3, "4": 0, "5": 0}
    assert stated.findings == []
    assert measured(*named, num_experts=4).value == pytest.approx(16 / 10.5)
    with pytest.raises(NotMeasurable, match="names expert 3, and num_experts is 3"):
        measured(*named, num_experts=3)


def test_records_of_different_lengths_are_refused_with_the_least_and_the_most() -> None:
    with pytest.raises(NotMeasurable, match="count 4 and 8 experts"):
        measured(*(ExpertTokens((1,) * count, devices=count) for count in (6, 8, 4)))


def test_the_degree_of_a_record_comes_before_that_of_the_card() -> None:
    found = measured(ExpertTokens((1, 2, 3, 6), devices=4))
    assert found.value == pytest.approx(6 / 3)
    with pytest.raises(NotMeasurable, match="no token"):
        measured(ExpertTokens((0, 0, 0, 0)))


def test_without_a_degree_experts_have_an_imbalance_and_devices_have_none() -> None:
    # 80 : 55 : 45 of three experts, whose mean is 60
    records = (ExpertTokens((30, 40, 20), rank=0), ExpertTokens((50, 15, 25), rank=1))
    found = token_to_expert_assignment(MoeAssignments(records), NO_ROWS, NO_GROUPS, Facts())
    assert found.value == found.details["imbalance_over_experts_ratio"] == pytest.approx(80 / 60)
    assert found.details["tokens_per_expert"] == {"0": 80, "1": 55, "2": 45}
    assert found.details["per_rank_tokens"] == {"0": 90, "1": 90}
    assert "tokens_per_device" not in found.details
    assert [finding.code for finding in found.findings] == ["expert-devices-unknown"]


def test_without_a_degree_traces_that_show_devices_count() -> None:
    rows = {"group": ["g"] * 2, "rank": [0, 1], "received_rows": [30, 70], "trace": [0, 1]}
    groups = pl.DataFrame(
        {"group": ["g"], "ambiguous": [False], "size": [2], "members": [[0, 1]], "dimension": ["ep"]}
    )
    records = MoeAssignments((ExpertTokens((3, 1)),))
    found = token_to_expert_assignment(records, pl.DataFrame(rows), groups, Facts())
    assert (found.value, [*found.findings]) == (pytest.approx(1.4), [])


def test_splits_of_traces_are_stated_beside_the_file() -> None:
    rows = {"group": ["g"] * 3, "rank": [0, 1, 1], "received_rows": [30, 50, 20], "trace": [0, 1, 1]}
    groups = pl.DataFrame(
        {"group": ["g"], "ambiguous": [False], "size": [2], "members": [[0, 1]], "dimension": ["ep"]}
    )
    file = MoeAssignments((ExpertTokens((3, 1)),))
    facts = Facts(ep=Fact(2, "card"))
    both = token_to_expert_assignment(file, pl.DataFrame(rows), groups, facts)
    assert (both.value, both.details["from_splits_ratio"]) == (pytest.approx(1.5), pytest.approx(1.4))
    for nothing in (None, MoeAssignments()):
        traced = token_to_expert_assignment(nothing, pl.DataFrame(rows), groups, facts)
        assert (traced.value, traced.ranks) == (pytest.approx(1.4), [0, 1])
        # 30 and 70 are 20 from their mean
        assert traced.details["per_group"]["g"] == {
            "imbalance_ratio": pytest.approx(1.4),
            "coefficient_of_variation_ratio": pytest.approx(0.4),
            "tokens_per_device": {"0": 30, "1": 70},
        }
