"""Communication alone as Chakra files, with its groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from chakra_wire import COMM_COLL_NODE, COMP_NODE, communication, read
from commands import invoke

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, write_run
from ccl_bench.trace.cache import read_content

if TYPE_CHECKING:
    from pathlib import Path

PLAN = Plan(dp_shard=2, tp=2, steps=2, layers=2)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("communication")
    write_run(PLAN, folder / "run")
    done = invoke(f"ccl-bench chakra {folder / 'run'} -o {folder / 'out'} --communication")
    assert done.returncode == 0, done.stderr
    return folder


def _calls(run: Path, rank: int) -> list[dict[str, Any]]:
    events = json.loads((run / f"rank{rank}_trace.json").read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel" and "nccl" in event["name"]]
    return sorted(kernels, key=lambda event: event["ts"])


@pytest.mark.parametrize("rank", range(4))
def test_calls_and_the_time_between_them_are_those_of_the_trace(exported: Path, rank: int) -> None:
    recorded = _calls(exported / "run", rank)
    metadata, nodes = read(exported / "out" / f"chakra.{rank}.et")
    assert metadata["rank"] == rank
    calls = communication(nodes)
    assert [node.name for node in calls] == [event["name"] for event in recorded]
    assert [node.duration_us for node in calls] == [round(event["dur"]) for event in recorded]
    assert [node.attributes["pg_size"] for node in calls] == [
        event["args"]["Group size"] for event in recorded
    ]
    by_id = {node.id: node for node in nodes}
    for node, event in zip(calls, recorded, strict=True):
        ended = [each["ts"] + each["dur"] for each in recorded if each["ts"] + each["dur"] <= event["ts"]]
        gap = round(event["ts"] - max(ended)) if ended else 0
        before = [by_id[number] for number in node.data_deps]
        waits = [each.duration_us for each in before if each.type == COMP_NODE]
        assert waits == [gap] * bool(gap)
        assert all(number < node.id for number in node.data_deps)


def test_groups_are_numbered_alike_on_every_rank(exported: Path) -> None:
    groups = json.loads((exported / "out" / "comm_group.json").read_text())
    assert sorted(groups.values()) == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert "0" not in groups  # ASTRA-sim asserts that a number is above 0
    for rank in range(4):
        nodes = communication(read(exported / "out" / f"chakra.{rank}.et")[1])
        assert all(rank in groups[node.attributes["pg_name"]] for node in nodes)
        assert all(node.type == COMM_COLL_NODE and not node.attributes["is_cpu_op"] for node in nodes)


def test_the_files_read_back_as_what_was_communicated(exported: Path) -> None:
    run = open_run(exported / "out")
    assert [(trace.form.name, trace.rank) for trace in run.traces] == [("chakra", rank) for rank in range(4)]
    calls = read_content(run.traces[0], ("et_communication",))[0].table("et_communication")
    recorded = [event["args"] for event in _calls(exported / "run", 0)]
    assert calls["in_elements"].to_list() == [each["In msg nelems"] for each in recorded]
    [count] = evaluate(run, ["coll_call_num"], jobs=1, use_cache=False)
    assert count.value == len(recorded)  # nothing marks a step: the whole trace is one


def test_nothing_is_written_over_without_force(exported: Path) -> None:
    again = invoke(f"ccl-bench chakra {exported / 'run'} -o {exported / 'out'} --communication")
    assert again.returncode == 2
    assert "chakra.0.et already exists" in again.stderr


def test_a_run_without_communication_has_nothing_to_export(tmp_path: Path) -> None:
    (tmp_path / "run_metadata.json").write_text('{"world_size": 2}')
    done = invoke(f"ccl-bench chakra {tmp_path} -o {tmp_path / 'out'} --communication")
    assert done.returncode == 4
    assert "contains no communication in a step" in done.stderr
