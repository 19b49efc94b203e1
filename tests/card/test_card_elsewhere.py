"""Cards as they are written elsewhere: what they mean is read, and no complaint about them is wrong."""

from __future__ import annotations

import pytest
from card_examples import FULL_CARD, changed

from ccl_bench.base.errors import InputError
from ccl_bench.card import Severity, card_in_text

LINKS = "workload.hardware.network_topo.bandwidth_gbps"
PLAN = "Model-executor.model_plan_parallelization"
BOTH_LINKS = "        - 200  # between nodes\n        - 2400  # NVLink\n"
"""An A100 has NVLink of 600 GB/s in both directions: 300 GB/s, or 2,400 Gbit/s, in one."""


def complaints(text):
    return {issue.path: issue for issue in card_in_text(text).issues}


def one_node(text):
    return (
        text.replace("total_count: 16", "total_count: 4").replace("pp: 2", "pp: 1").replace("tp: 4", "tp: 2")
    )


def test_the_kind_of_trace_of_a_tpu_is_known():
    assert complaints(changed("    - json\n", "    - json_tpu\n")) == {}


def test_settings_of_experts_beside_the_plan_are_no_mistake():
    text = changed(
        "  protocol_selection:", "  expert_parallel:\n    eplb: true\n    top_k: 2\n  protocol_selection:"
    )
    assert complaints(text) == {}


def test_the_degree_of_experts_may_be_written_in_words():
    reading = card_in_text(changed("    ep: 1", "    expert_parallel: 1"))
    assert reading.value.parallelism.ep == 1
    assert [issue.severity for issue in reading.issues] == [Severity.NOTE]


def test_one_link_of_one_node_is_the_link_inside_it():
    text = one_node(changed(BOTH_LINKS, "        - 2400\n"))
    reading = card_in_text(text)
    assert (reading.value.hardware.network.bandwidth.scale_up, len(reading.issues)) == (2400, 1)
    assert reading.issues[0].severity is Severity.NOTE


def test_one_link_of_several_nodes_is_not_guessed():
    issue = complaints(changed(BOTH_LINKS, "        - 2400\n"))[LINKS]
    assert (issue.severity, issue.message) == (Severity.ERROR, "holds 1 value where 2 are expected")
    assert issue.fix == "write scale_out: or scale_up: before it, below the key"


def test_a_part_that_is_indented_too_far_is_reported_with_its_line_and_where_it_belongs():
    top, rest = FULL_CARD.split("\nModel-executor:")
    inside, after = rest.split("\nmetric_source:")
    deeper = "".join(f"  {line}\n" for line in f"Model-executor:{inside}".splitlines())
    reading = card_in_text(f"{top}\n{deeper}\nmetric_source:{after}")
    assert reading.value.framework.name is None
    (issue,) = [issue for issue in reading.issues if issue.path == "workload.Model-executor"]
    assert issue.line == len(top.splitlines()) + 2
    assert issue.message == "is not a key of this format and is ignored"
    assert issue.fix == "write it as Model-executor"


@pytest.mark.parametrize(("framework", "agrees"), [("maxtext", True), ("torchtitan", False)])
def test_experts_multiply_the_ranks_where_they_are_an_axis_of_the_mesh(framework, agrees):
    text = changed("name: torchtitan", f"name: {framework}").replace("    ep: 1", "    ep: 4")
    text = text.replace("tp: 4", "tp: 1")  # 2 of dp x 2 of pp x 4 of ep = 16
    reading = card_in_text(text)
    assert (PLAN not in complaints(text), reading.value.world_size == 16) == (agrees, agrees)
    if not agrees:
        assert "ep = 4 uses the ranks of dp and tp" in complaints(text)[PLAN].message


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("600", "600 is that in GB/s and in both directions"),
        ("300", "300 is that in GB/s"),
        (
            "4800",
            "4800 Gbit/s (600 GB/s) is not what a nvidia_a100 has: 2400 Gbit/s (300 GB/s) in one direction",
        ),
    ],
)
def test_a_link_in_another_unit_is_reported_in_both(written, meant):
    issue = complaints(changed("- 2400", f"- {written}"))[f"{LINKS}.scale_up"]
    assert (issue.severity, issue.fix.partition(",")[0]) == (Severity.WARNING, "write 2400")
    assert issue.message.endswith(meant)


@pytest.mark.parametrize("written", ["2400", "2000", "2390"])
def test_a_link_that_a_device_may_have_is_no_mistake(written):
    assert complaints(changed("- 2400", f"- {written}")) == {}


def test_a_unit_of_bytes_is_converted_in_the_fix():
    issue = complaints(changed("- 2400", "- 300 GB/s"))[f"{LINKS}.scale_up"]
    assert issue.fix == "write 2400: the field is in Gbit/s"


@pytest.mark.parametrize(
    ("line", "place", "fix"),
    [
        ("  a: 1\n  i", "3:3", "write `key: value` in this line"),
        ("  b: https://x.org/ // here: name", "2:28", "into quotes"),
        ("\tb: 1", "2:1", "indent with spaces"),
        ('  b: "x', "2:6", "close the quotes"),
        ("  b: [1, 2", "2:6", "close the bracket"),
        ("  b: @x", "2:6", "into quotes"),
    ],
)
def test_broken_yaml_is_reported_with_line_and_column(line, place, fix):
    with pytest.raises(InputError) as caught:
        card_in_text(f"workload:\n{line}\n  c: 2\n", file="card.yaml")
    assert caught.value.where == f"card.yaml:{place}"
    assert fix in caught.value.fix
