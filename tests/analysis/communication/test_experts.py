"""Tokens on the devices that share experts, from files that launchers write and from split sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
from cross_runs import call, facts, frame, group, measured, result, tables

from ccl_bench import metrics, side_files
from ccl_bench.analysis.communication.exchanges import by_device, coefficient_of_variation, imbalance
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.base.errors import CclBenchError
from ccl_bench.metrics.token_to_expert_assignment import _shares_experts
from ccl_bench.run import open_run
from ccl_bench.testing import Experts, Plan, plans, values, write_run

NAME = "token_to_expert_assignment"


@pytest.mark.parametrize("has_file", [False, True])
def test_both_sources_agree_on_the_uneven_plan(has_file: bool, tmp_path: Path):
    # 900 of 1,600 tokens go to member 2 of 4: 900 / 400
    expected = write_run(plans.uneven_experts(), tmp_path, with_moe_assignments=has_file)
    found = measured(tmp_path, NAME)
    assert found.value == pytest.approx(900 / 400) == values(expected)[NAME]
    if has_file:
        assert (found.details["source"], found.details["from_splits_ratio"]) == (
            "moe_assignments*.json",
            2.25,
        )
        assert found.details["tokens_per_device"] == {"0": 400, "1": 200, "2": 1800, "3": 800}  # two layers
        assert found.details["per_layer"] == {"0": 2.25, "1": 2.25}
        assert "moe_assignments.json" in found.provenance.files
        assert side_files.read_moe_assignments(tmp_path / "moe_assignments.json").issues == []
    else:
        [one] = found.details["per_group"].values()
        tokens = list(one["tokens_per_device"].values())
        # 200 : 100 : 900 : 400, twice in a layer and step: in the forward pass, and again for its gradient
        assert tokens == [count * 2 * 2 * 3 for count in (200, 100, 900, 400)]
        mean, spread = 400, ((200**2 + 300**2 + 500**2 + 0) / 4) ** 0.5
        assert one["coefficient_of_variation_ratio"] == pytest.approx(spread / mean)


def test_several_groups_give_the_mean_of_their_imbalances(tmp_path: Path):
    expected = write_run(
        Plan(dp_shard=4, ep=2, layers=1, steps=1, experts=Experts(((3, 5), (7, 1)))), tmp_path
    )
    found = measured(tmp_path, NAME)
    assert found.value == pytest.approx(10 / 8) == values(expected)[NAME]
    assert [list(one["tokens_per_device"]) for one in found.details["per_group"].values()] == [
        ["0", "1"],
        ["2", "3"],
    ]


def write_ranks(folder: Path, *records: Any, ep: int | None = 2) -> Path:
    """Write one file a rank beside a card that states the expert-parallel degree."""
    folder.mkdir(exist_ok=True)
    for rank, record in enumerate(records):
        (folder / f"moe_assignments_rank{rank}.json").write_text(json.dumps(record))
    plan = f"  model_plan_parallelization:\n    ep: {ep}\n" if ep else ""
    (folder / "workload_card.yaml").write_text(
        "version: 1\nworkload:\n  model:\n    moe: true\n    model_family: x\nModel-executor:\n"
        f"  framework:\n    name: x\n{plan}"
    )
    return folder


def test_files_of_the_ranks_are_added_and_experts_lie_on_devices_in_order(tmp_path: Path):
    run = write_ranks(
        tmp_path, {"rank": 0, "token_counts": [10, 20, 30, 40]}, {"rank": 1, "token_counts": [0, 0, 5, 15]}
    )
    found = measured(run, NAME)
    assert found.details["tokens_per_expert"] == {"0": 10, "1": 20, "2": 35, "3": 55}
    assert found.details["tokens_per_device"] == {"0": 30, "1": 90}
    assert [*found.details["per_rank_tokens"].items()] == [("0", 100), ("1", 20)]
    assert found.value == pytest.approx(90 / 60)
    assert found.details["coefficient_of_variation_ratio"] == pytest.approx(30 / 60)
    assert sorted(found.provenance.files) == [
        "moe_assignments_rank0.json",
        "moe_assignments_rank1.json",
        "workload_card.yaml",
    ]


@pytest.mark.parametrize(
    ("records", "dropped"),
    [
        (
            [
                {"rank": 0, "token_counts": [1, 3], "dropped": 4},
                {"rank": 1, "token_counts": [1, 3], "dropped_tokens": 1},
            ],
            5,
        ),
        ([[{"token_counts": [1, 3], "dropped": [2, 1]}, {"token_counts": [1, 3]}]], 3),
        ([{"token_counts": [[1, 3], [1, 3]]}], None),
        ([{"layers": {"0": [1, 3], "1": {"token_counts": [1, 3]}}}], None),
        ([{"expert_parallel_size": 2, "layers": [[1, 3]]}], None),
        ([{"0": {"0": 1, "1": 2}, "1": {"1": 1}}], None),
        ([{"rank0": {"expert_0": 1, "expert_1": 2}, "rank1": {"expert_1": 1}}], None),
        ([{"0": [1, 2], "1": [0, 1]}], None),
        ([{"ep": 2, "0": {"0": 1, "1": 3}}], None),
        ([{"0": {"layers": {"0": [1, 3], "1": {"0": 1, "1": 3}}}}], None),
        ([[[1, 2], [0, 1]]], None),
        ([{"0": 1, "1": 2}, {"1": 1}], None),
        ([[1, 2], [0, 1]], None),
        ([{"rank": 0, "0": 1, "1": 3, "dropped": 2}], 2),
        ([{"rank": 0, "token_counts": {"0": 1, "1": 3}}], None),
    ],
)
def test_layouts_in_use_are_read(records: list[Any], dropped: int | None, tmp_path: Path):
    found = measured(write_ranks(tmp_path, *records), NAME)
    assert found.value == pytest.approx(3 / 2)
    assert found.details.get("dropped_tokens_count") == dropped


def test_the_degree_in_the_file_counts_before_that_of_the_card(tmp_path: Path):
    run = write_ranks(tmp_path, {"ep_size": 4, "token_counts": [1, 1, 1, 5]}, ep=2)
    assert measured(run, NAME).value == pytest.approx(5 / 2)


def test_experts_without_a_known_degree_are_compared_with_each_other(tmp_path: Path):
    found = result(write_ranks(tmp_path, {"token_counts": [1, 3]}, ep=None), NAME)
    assert (found.status, found.value) == ("ok", 1.5)
    assert "expert-devices-unknown" in {finding.code for finding in found.findings}


def test_experts_that_do_not_spread_over_the_devices_are_refused(tmp_path: Path):
    found = result(write_ranks(tmp_path, {"token_counts": [1, 3, 3]}), NAME)
    assert (found.status, found.reason) == ("not_measurable", "3 experts do not spread evenly over 2 devices")


def test_records_of_different_experts_are_refused(tmp_path: Path):
    run = write_ranks(tmp_path, {"ep": 2, "token_counts": [1, 3]}, {"ep": 3, "token_counts": [1, 3, 2]})
    assert result(run, NAME).reason == "records of moe_assignments*.json count 2 and 3 experts or devices"


def test_no_tokens_at_all_are_refused(tmp_path: Path):
    assert result(write_ranks(tmp_path, {"token_counts": [0, 0]}), NAME).status == "not_measurable"


def test_a_dense_model_has_no_experts(tmp_path: Path):
    write_run(Plan(dp_shard=2, steps=1, layers=1), tmp_path)
    found = result(tmp_path, NAME)
    assert (found.status, found.reason) == ("not_applicable", "the model has no experts (workload card)")


def test_experts_on_one_device_are_not_shared(tmp_path: Path):
    assert result(write_ranks(tmp_path, {"token_counts": [1, 3]}, ep=1), NAME).status == "not_applicable"


def test_a_group_that_was_not_recorded_whole_is_left_out(tmp_path: Path):
    plan = Plan(
        dp_shard=4, ep=2, layers=1, steps=1, experts=Experts(((3, 5), (7, 1))), missing_ranks=frozenset({3})
    )
    write_run(plan, tmp_path)
    assert list(measured(tmp_path, NAME).details["per_group"]) == ["mesh_ep 0,1"]


@pytest.mark.parametrize(
    ("stated", "dimension", "is_shared"),
    [
        ({}, "ep", True),
        ({"ep": 4}, "ep", True),
        ({"ep": 2}, "dp", True),
        ({"ep": 4, "is_moe": True}, "dp", False),
        ({"is_moe": True}, "dp", True),
        ({"is_moe": False}, "dp", False),
        ({}, "dp", False),
    ],
)
def test_a_group_shares_experts_by_its_name_its_size_or_the_model(
    stated: dict[str, Any], dimension: str, is_shared: bool
):
    known = facts(**stated)
    assert _shares_experts(group("g", 0, 1, dimension=dimension), known) is is_shared


def test_exchanges_without_splits_show_nothing(tmp_path: Path):
    write_run(Plan(dp_shard=2, ep=2, layers=1, steps=1, experts=Experts(((4, 4), (4, 4)))), tmp_path)
    found = result(tmp_path, NAME)
    assert (found.status, "split sizes" in found.reason) == ("not_measurable", True)


DAMAGED = [
    ({"rank": 0}, "", "holds no counts of tokens"),
    ({"token_counts": []}, "token_counts", "is not a list of counts"),
    ({"token_counts": [1, -2]}, "token_counts[1]", "-2 is not a count"),
    ({"token_counts": [1, 2.5]}, "token_counts[1]", "2.5 is not a count"),
    ({"token_counts": [1, "x"]}, "token_counts[1]", "is not a number"),
    ({"layers": {"3": "x"}}, "layers.3", "is not a list of counts"),
    ({"ep": 0, "token_counts": [1]}, "ep", "is 0"),
    (["x"], "[0]", "is not a number"),
    ({"0": {"0": 1}, "1": 5}, "1", "5 is not a record"),
    ({"0": {"0": 1, "1": -2}}, "0.1", "-2 is not a count"),
    ({"0": {"0": 1, "expert_0": 2}}, "0.expert_0", "is not the number of an expert, or repeats one"),
    ({"0": {"99999999": 1}}, "0.99999999", "is not the number of an expert, or repeats one"),
    ({"0": {"0": 1, "expertt_1": 2}}, "0.expertt_1", "is not a key of this format and is ignored"),
    ([{"token_counts": [1]}, {"rank": "a", "token_counts": [1]}], "[1].rank", "is not a number"),
    (5, "", "5 is not a record"),
    ([], "", "holds no counts of tokens"),
]


@pytest.mark.parametrize(("data", "path", "message"), DAMAGED)
def test_what_cannot_be_used_is_reported_with_its_place(data: Any, path: str, message: str, tmp_path: Path):
    file = tmp_path / "moe_assignments.json"
    file.write_text(json.dumps(data))
    [issue] = side_files.read_moe_assignments(file).issues
    assert (issue.path, message in issue.message) == (path, True), issue


def test_a_list_with_a_damaged_count_is_left_out_whole(tmp_path: Path):
    file = tmp_path / "moe_assignments.json"
    file.write_text(json.dumps({"layers": {"0": [1, None], "1": [4, 2]}}))
    assert [record.tokens for record in side_files.read_moe_assignments(file).value.records] == [(4, 2)]


def test_a_file_that_is_no_json_is_a_finding_and_the_others_count(tmp_path: Path):
    run = write_ranks(tmp_path, {"token_counts": [1, 3]})
    (run / "moe_assignments_rank1.json").write_text("{")
    assert [finding.code for finding in open_run(run).findings if "moe" in finding.file] == ["file-malformed"]
    assert measured(run, NAME).value == pytest.approx(3 / 2)


def test_the_files_are_known_by_name_and_content(tmp_path: Path):
    file = tmp_path / "moe_assignments_3.json"
    file.write_text('{"rank": 3, "token_counts": [1]}')
    assert side_files.side_file(file) == side_files.kinds.MOE_ASSIGNMENTS
    file.write_text('{"loss": [1]}')
    assert side_files.side_file(file) is None


def test_a_dispatch_and_its_combine_count_once():
    rows = [
        {
            "collective": "all_to_all",
            "in_split": there,
            "out_split": back,
            "start_ns": at,
            "launch_ns": at,
            "stream": 1,
            "group_name": "1",
            "group_ranks": [0, 1],
            "group_size": 2,
            "trace": 0,
            "rank": 0,
        }
        for at, (there, back) in enumerate(
            [([1, 2], [3, 4]), ([3, 4], [1, 2]), ([5, 5], [5, 5]), ([5, 5], [5, 5])]
        )
    ]
    compute = DERIVED.get("expert_rows").compute
    found = compute(frame("described_calls", rows), frame_of_process_groups())
    assert found.select("dispatches", "received_rows").rows() == [(2, 3 + 4 + 5 + 5)]


def frame_of_process_groups() -> Any:
    from ccl_bench.schema import TABLES

    return TABLES["process_groups"].empty()


def test_groups_of_another_size_than_the_degree_do_not_share_experts():
    rows = [{"group": "g", "rank": r, "trace": r, "dispatches": 1, "received_rows": 5 * r} for r in (0, 1)]
    compute = metrics.load().get(NAME).compute
    groups = frame("groups", [group("g", 0, 1, dimension="cp")])
    with pytest.raises(CclBenchError):
        compute(None, frame("expert_rows", rows), groups, facts(ep=4))
    assert compute(None, frame("expert_rows", rows), groups, facts(ep=2)).value == 2
    assert compute(None, frame("expert_rows", rows), groups, facts(is_moe=True)).value == 2


def test_imbalance_and_variation_of_even_devices():
    assert (imbalance([4, 4]), coefficient_of_variation([4, 4]), by_device([1, 2, 3, 4], 2)) == (1, 0, [3, 7])


def test_a_message_is_no_exchange_of_tokens(tmp_path: Path):
    write_run(Plan(pp=2, layers=1, steps=1), tmp_path)
    assert tables(tmp_path, "expert_rows")["expert_rows"].is_empty()
    assert call(0, 1, 0, 1)["uneven"] is False


def _state_experts(run: Path, count: int) -> None:
    card = run / "workload_card.yaml"
    stated = f"    moe: true\n    model_arch:\n      num_experts: {count}\n"
    card.write_text(card.read_text().replace("    moe: true\n", stated))


def test_experts_that_no_token_went_to_count_by_the_number_in_the_card(tmp_path: Path):
    # 8 experts on 2 devices, 10 + 0 tokens and none beyond expert 4: the mean is 5 a device
    run = write_ranks(tmp_path, {"0": {"0": 4, "3": 5}, "1": {"0": 1}})
    _state_experts(run, 8)
    found = measured(run, NAME)
    assert (found.value, found.findings) == (10 / 5, [])
    assert found.details["tokens_per_expert"] == {"0": 5, "1": 0, "2": 0, "3": 5, **dict.fromkeys("4567", 0)}
    assert found.details["per_rank_tokens"] == {"0": 9, "1": 1}


def test_how_many_experts_there_are_is_assumed_only_with_a_finding(tmp_path: Path):
    found = measured(write_ranks(tmp_path, {"0": {"0": 4, "3": 5}}), NAME)
    assert found.details["tokens_per_device"] == {"0": 4, "1": 5}
    assert [finding.code for finding in found.findings] == ["experts-assumed"]


def test_an_expert_beyond_those_of_the_card_is_refused(tmp_path: Path):
    run = write_ranks(tmp_path, {"0": {"0": 4, "8": 5}})
    _state_experts(run, 8)
    assert result(run, NAME).reason == "moe_assignments*.json names expert 8, and num_experts is 8"


def test_the_rank_of_a_file_is_in_its_name(tmp_path: Path):
    for name in ("moe_assignments_rank3.json", "moe_assignments_3.json", "moe_assignments3.json"):
        (tmp_path / name).write_text('{"0": 1, "1": 2}')
        (record,) = side_files.read_moe_assignments(tmp_path / name).value.records
        assert (record.rank, record.tokens) == (3, (1, 2))


def test_tokens_of_experts_are_summed_on_their_devices():
    assert by_device([1, 2, 3, 4, 5, 6], 3) == [3, 7, 11]
    assert by_device([1, 2], 1) == [3]
    with pytest.raises(CclBenchError, match="5 experts do not spread evenly over 2 devices"):
        by_device([1, 2, 3, 4, 5], 2)


def test_what_ranks_send_to_each_other_is_added_up_without_what_they_keep():
    traffic = [
        call(0, 1, 0, 9, collective="send", peer=1, size_bytes=10),
        call(0, 2, 10, 19, collective="send", peer=1, size_bytes=5),
        call(0, 3, 20, 29, collective="recv", peer=1, size_bytes=99),
        call(1, 1, 0, 9, collective="send", peer=None, size_bytes=7),
        call(1, 2, 10, 19, collective="send", peer=1, size_bytes=7),
    ]  # fmt: skip
    parts = [
        {
            "trace": rank,
            "rank": rank,
            "group": "g",
            "position": place,
            "calls": 2,
            "sent_bytes": 4.0 * (place + 1),
        }
        for rank in (0, 1)
        for place in (0, 1, 2)
    ]
    found = DERIVED.get("traffic_matrix").compute(
        frame("traffic", traffic), frame("exchanges", parts), frame("groups", [group("g", 0, 1)])
    )
    assert found.select("source", "target", "kind", "calls", "bytes").rows() == [
        (0, 1, "all_to_all", 2, 8.0), (0, 1, "message", 2, 15.0), (1, 0, "all_to_all", 2, 4.0),
    ]  # fmt: skip
