"""Bringing together what frameworks left, in the layouts of torchtitan 0.1 to 0.3 and others."""

from __future__ import annotations

import json
import pickle
import shutil

from collected import collect, files

from ccl_bench.collect.collect_run import CollectRequest
from ccl_bench.collect.collect_run import collect_run as collected
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, Style, trace_path, write_run

PLAN = Plan(dp_shard=2, tp=2)
OBSERVED = json.dumps({"schema": "1.0.1", "pid": 7, "time": "-", "start_ts": 1, "nodes": [], "finish_ts": 2})


def _written(folder, *, iteration=None, style=None):
    """Write traces of four ranks as torchtitan does, and nothing beside them."""
    write_run(PLAN, folder, iteration=iteration, style=style)
    for name in ("workload_card.yaml", "run_metadata.json"):
        (folder / name).unlink()


def _gathered(folder, *sources, **wishes):
    return collected(CollectRequest(folder / "run", sources=sources, folder=folder, **wishes))


def test_the_layout_of_torchtitan_0_1_and_0_2(tmp_path):
    _written(tmp_path / "outputs", iteration=10)
    _written(tmp_path / "outputs", iteration=20, style=Style(is_pretty=True))
    snapshot = tmp_path / "outputs/memory_snapshot/iteration_20/rank1_memory_snapshot.pickle"
    snapshot.parent.mkdir(parents=True)
    snapshot.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    done = _gathered(tmp_path)
    assert files(tmp_path / "run") == {
        *(f"profile_trace/iteration_{n}/rank{rank}_trace.json" for n in (10, 20) for rank in range(4)),
        *(f"profile_trace/rank{rank}_trace.json" for rank in range(4)),
        *(f"kineto_trace_{rank}.json" for rank in range(4)),
        "memory_snapshot/iteration_20/rank1_memory_snapshot.pickle",
        "run_metadata.json",
        "workload_card.yaml",
    }
    assert done.copied.files == 9
    # The last window is what people look at first.
    for rank in range(4):
        last = (tmp_path / f"run/kineto_trace_{rank}.json").readlink()
        assert last.as_posix() == f"profile_trace/iteration_20/rank{rank}_trace.json"
        beside = (tmp_path / f"run/profile_trace/rank{rank}_trace.json").readlink()
        assert beside.as_posix() == f"iteration_20/rank{rank}_trace.json"
    assert (tmp_path / "outputs/profile_trace/iteration_10/rank0_trace.json").exists()


def test_the_layout_of_torchtitan_0_3_with_packed_traces(tmp_path):
    left = tmp_path / "outputs/profiling/traces/iteration_10"
    left.mkdir(parents=True)
    write_run(PLAN, tmp_path / "made", style=Style(compresses=True))
    for rank in range(4):
        made = trace_path(tmp_path / "made", rank, style=Style(compresses=True))
        shutil.move(made, left / f"rank{rank}_trace.json.gz")
    _gathered(tmp_path)
    assert {f"profile_trace/iteration_10/rank{rank}_trace.json.gz" for rank in range(4)} <= files(
        tmp_path / "run"
    )
    # A link named .json to a packed file would mislead every program that goes by the name.
    assert (tmp_path / "run/kineto_trace_0.json.gz").is_symlink()


def test_the_snapshot_of_a_run_that_ran_out_of_memory_keeps_its_folder(tmp_path):
    left = tmp_path / "outputs/memory_snapshot/iteration_3_exit"
    left.mkdir(parents=True)
    (left / "rank0_memory_snapshot.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    _gathered(tmp_path)
    assert "memory_snapshot/iteration_3_exit/rank0_memory_snapshot.pickle" in files(tmp_path / "run")


def test_traces_of_other_frameworks_are_recognised_by_content(tmp_path, kineto_text):
    left = tmp_path / "tensor board+logs"
    left.mkdir()
    (left / "nid001_77.1700000000000000000.pt.trace.json").write_text(kineto_text)
    (left / "observed.json").write_text(OBSERVED)
    (left / "step_times.json").write_text("[0.5, 0.25]")
    (left / "notes.json").write_text("{}")
    _gathered(tmp_path, left)
    found = files(tmp_path / "run")
    assert {"profile_trace/rank0_trace.json", "execution_trace/observed.json", "step_times.json"} <= found
    assert "notes.json" not in found


def test_files_of_the_same_name_from_two_nodes_are_both_kept(tmp_path):
    for node in ("node 1", "node 2"):
        (tmp_path / node).mkdir()
        (tmp_path / node / "observed.json").write_text(
            OBSERVED.replace('"pid": 7', f'"pid": {len(node)}{node[-1]}')
        )
    done = _gathered(tmp_path, tmp_path / "node 1", tmp_path / "node 2")
    assert done.copied.files == 2
    assert len([name for name in files(tmp_path / "run") if name.startswith("execution_trace/")]) == 2


def test_gathering_again_changes_nothing(tmp_path):
    _written(tmp_path / "outputs", iteration=10)
    _gathered(tmp_path)
    before = {name: (tmp_path / "run" / name).read_bytes() for name in files(tmp_path / "run")}
    again = _gathered(tmp_path)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in files(tmp_path / "run")} == before
    assert again.copied.files == 0


def test_a_run_that_is_there_is_not_mixed_with_another(tmp_path):
    _written(tmp_path / "outputs", iteration=10)
    _gathered(tmp_path)
    ended = collect(tmp_path, "--output", "run", "--source", "outputs")
    assert ended.returncode == 2
    assert "already holds a run" in ended.stderr


def test_what_lies_in_the_default_place_is_not_mixed_into_a_run(tmp_path):
    write_run(PLAN, tmp_path / "run", iteration=10)
    _written(tmp_path / "outputs", iteration=30)
    _gathered(tmp_path)
    assert {name for name in files(tmp_path / "run") if "iteration_30" in name} == set()


def test_force_replaces_the_run_and_keeps_what_a_person_wrote(tmp_path):
    _written(tmp_path / "outputs", iteration=10)
    _gathered(tmp_path)
    card = tmp_path / "run/workload_card.yaml"
    card.write_text(card.read_text().replace("contributor:", "contributor: Ada Lovelace"))
    (tmp_path / "run/report.html").write_text("of the run before")
    shutil.rmtree(tmp_path / "outputs")
    _written(tmp_path / "outputs", iteration=30)
    _gathered(tmp_path, tmp_path / "outputs", force=True)
    assert {name for name in files(tmp_path / "run") if "iteration_10" in name} == set()
    assert not (tmp_path / "run/report.html").exists()
    assert "Ada Lovelace" in card.read_text()


def test_only_what_the_command_wrote_is_gathered(tmp_path, kineto_text):
    _written(tmp_path / "outputs", iteration=10)
    (tmp_path / "new.json").write_text(kineto_text)
    later = "outputs/profile_trace/iteration_20"
    ended = collect(
        tmp_path,
        "--output",
        "run",
        "--",
        "sh",
        "-c",
        f"mkdir -p {later} && cp new.json {later}/rank0_trace.json",
    )
    assert ended.returncode == 0, ended.stderr
    traces = {name for name in files(tmp_path / "run") if name.startswith("profile_trace/")}
    assert traces == {"profile_trace/iteration_20/rank0_trace.json", "profile_trace/rank0_trace.json"}


def test_the_card_beside_the_traces_comes_with_them_unless_there_is_another(tmp_path):
    write_run(PLAN, tmp_path / "outputs", iteration=10)
    card = (tmp_path / "outputs/workload_card.yaml").read_text()
    _gathered(tmp_path, tmp_path / "outputs")
    assert (tmp_path / "run/workload_card.yaml").read_text() == card
    (tmp_path / "outputs/workload_card.yaml").write_text(card.replace("training", "inference"))
    _gathered(tmp_path, tmp_path / "outputs", force=True)
    assert (tmp_path / "run/workload_card.yaml").read_text() == card


def test_numbers_of_a_gathered_run_are_those_of_the_original(tmp_path):
    expected = write_run(PLAN, tmp_path / "outputs", iteration=10)
    _gathered(tmp_path, card=tmp_path / "outputs/workload_card.yaml")
    (result,) = evaluate(open_run(tmp_path / "run"), ["coll_call_num"], jobs=1)
    assert result.value == sum(expected.call_counts(rank=0, step=PLAN.first_step).values())


def test_on_a_full_disk_traces_are_linked_to_and_can_be_measured(tmp_path, full_disk):
    _written(tmp_path / "outputs", iteration=10, style=Style())
    done = collected(
        CollectRequest(full_disk / "run", sources=(tmp_path / "outputs",), folder=tmp_path),
    )
    assert done.copied.linked > 0
    (result,) = evaluate(open_run(full_disk / "run"), ["coll_call_num"], jobs=1)
    assert result.value > 0
