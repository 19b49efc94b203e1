"""Real runs replay to the step that was recorded, and without an injected straggler to a healthy one."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from commands import invoke

from ccl_bench.evaluate.load import load_tables
from ccl_bench.run import open_run
from ccl_bench.whatif import RunReplays, load_run_graph
from ccl_bench.whatif.critical_path import find_critical_path, find_paths

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("shared_cache")

RUNS = {"megatron-tp8": 1e-3, "dlrm-8rank": 2e-3, "nccl-args": 1e-4, "deepseek-dualpipe": 0.01}
"""Run → the largest error of a replayed step."""


@cache
def replays(folder: Path, name: str) -> RunReplays:
    return RunReplays(load_run_graph(open_run(folder / name)))


@pytest.mark.parametrize(("name", "error"), RUNS.items())
def test_the_replayed_step_is_the_recorded_one(corpus: Path, name: str, error: float) -> None:
    run = replays(corpus / "kineto", name)
    found = run.steps_s([run.recorded])[0]
    assert found == pytest.approx(run.recorded_s, rel=error)


def test_gloo_meets_on_all_ranks_and_replays_exactly(corpus: Path) -> None:
    run = replays(corpus / "kineto", "gloo-fsdp2-tp2-args")
    assert (run.run.meets >= 0).sum() == 304
    assert run.steps_s([run.recorded])[0] == pytest.approx(run.recorded_s, rel=1e-9)


@pytest.mark.parametrize("name", ["megatron-tp8", "dlrm-8rank", "deepseek-dualpipe", "gloo-fsdp2-tp2-args"])
def test_the_segments_of_the_critical_path_tile_it(corpus: Path, name: str) -> None:
    run = replays(corpus / "kineto", name)
    (events,) = run.path_events()
    for step, path in zip(events.steps, find_paths(run.graph, [events]), strict=True):
        assert all(one.end == other.start for one, other in pairwise(path))
        assert path[-1].end == max(events.moments[step.ends])
        assert all(segment.end > segment.start for segment in path)


def test_megatron_is_bound_by_the_host_of_rank_0(corpus: Path) -> None:
    found = find_critical_path(replays(corpus / "kineto", "megatron-tp8"))
    assert (found.parts[0].worker, found.parts[0].kind) == ("0", "host")
    assert found.parts[0].share > 0.999


STEPS = [name for _ in range(4) for name in ("clean", "clean", "slow", "slow", "last", "last")]


def test_messages_without_peers_meet_as_their_labels_say(corpus: Path) -> None:
    run = replays(corpus / "injected-pp", "train-pp4-dp2").run
    ops = run.operations.with_columns(meet=pl.Series(run.meets), name=pl.col("name").cast(pl.String))
    marks = ops.filter(pl.col("name").str.contains("^.recv_")).select("trace", "start_ns", mark="name")
    received = (
        ops.filter(pl.col("name") == "gloo:recv")
        .sort("start_ns")
        .join_asof(marks.sort("start_ns"), on="start_ns", by="trace", check_sortedness=False)
    )
    sent = ops.filter(pl.col("name") == "gloo:send").select("meet", sender="rank")
    pairs = received.join(sent, on="meet").with_columns(
        way=pl.col("mark").str.extract("recv_([a-z]+)"), from_rank=pl.col("sender") - pl.col("rank")
    )
    assert sorted(pairs.group_by("way", "from_rank").len().rows()) == [
        ("backward", 1, 1152),
        ("forward", -1, 1152),
    ]
    assert dict(ops.select("rank", "stage").unique().iter_rows()) == {rank: rank % 4 for rank in range(8)}


@pytest.mark.parametrize(
    ("scenario", "without", "most"), [("slow", "rank:1", 0.02), ("last", "stage:3", 0.08)]
)
def test_without_the_injected_straggler_a_step_is_a_healthy_one(
    corpus: Path, scenario: str, without: str, most: float
) -> None:
    """The machine was busy while it was recorded, so that quartiles are compared."""
    run = replays(corpus / "injected-pp", "train-pp4-dp2")
    kind, name = without.split(":")
    found = run.steps_s([run.without(run.matches(kind, name))])[0]
    steps = np.array(STEPS)
    healthy, better, slow = (
        float(np.percentile(of, 25))
        for of in (
            run.recorded_s[steps == "clean"],
            found[steps == scenario],
            run.recorded_s[steps == scenario],
        )
    )
    assert better == pytest.approx(healthy, rel=most)
    assert slow > 1.2 * healthy


def test_the_slow_rank_is_named_in_every_step(corpus: Path) -> None:
    run = replays(corpus / "injected-pp", "train-pp4-dp2")
    alone = np.stack(run.steps_s(run.ideal_but(run.matches("rank", str(rank))) for rank in range(8)))
    named = alone.argmax(axis=0)[np.array(STEPS) == "slow"]
    assert named.tolist() == [1] * 8


@cache
def answer(folder: Path, *options: str) -> Any:
    ran = invoke(["ccl-bench", "what-if", str(folder), "--format", "json", *options])
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_steps_are_chosen_by_their_ranges(corpus: Path) -> None:
    folder = corpus / "injected-pp" / "train-pp4-dp2"
    found = answer(folder, "--marker", "scenario slow", "--without", "rank:1")
    run = replays(corpus / "injected-pp", "train-pp4-dp2")
    steps = run.recorded_s[np.array(STEPS) == "slow"]
    assert found["step_s"] == pytest.approx(steps, rel=2e-3)  # a range begins after its step
    assert max(found["by"]["rank"], key=found["by"]["rank"].get) == "1"
    assert found["scenarios"][0]["gain_s"] == pytest.approx(
        found["t_original_s"] - found["scenarios"][0]["t_s"]
    )
    assert {each["code"] for each in found["findings"]} >= {"meetings-inferred"}


def test_scenarios_of_communication(corpus: Path) -> None:
    options = (
        "--overlap",
        "all_reduce",
        "--network",
        "B=1,alpha=0",
        "--scale",
        "comm:all_reduce=0",
        "--scale",
        "kernel:gemm=0.5",
    )
    found = answer(corpus / "kineto" / "megatron-tp8", *options)
    names = [each["name"] for each in found["scenarios"]]
    assert names == ["comm:all_reduce × 0", "kernel:gemm × 0.5", "overlap all_reduce", "network B=1,alpha=0"]
    gains = {each["name"]: each["gain_s"] for each in found["scenarios"]}
    assert gains["overlap all_reduce"] == pytest.approx(gains["comm:all_reduce × 0"], abs=1e-6)
    # 84 messages of 67 MB at 1 GB/s take 1.75 times their size: no launch is slower than that.
    sizes = replays(corpus / "kineto", "megatron-tp8").run.operations.filter(
        pl.col("collective").is_not_null(), pl.col("rank") == 0
    )
    least = 2 * 7 / 8 * sizes["size_bytes"].sum() / 1e9
    step = found["scenarios"][3]["t_s"]
    assert least <= step <= least + found["t_original_s"]


@pytest.mark.parametrize("name", ["tiny", "nvtx-attention", "jacobi-mpi", "two-gpu-sendrecv"])
def test_reports_of_nsight_systems_replay(corpus: Path, name: str) -> None:
    found = answer(corpus / "nsys" / name)
    assert found["unexplained"] < 0.005
    steps = load_tables(open_run(corpus / "nsys" / name), ["steps"]).inputs["steps"]
    longest_ns = (steps["device_end_ns"] - steps["device_start_ns"]).max()
    assert found["t_recorded_s"] == pytest.approx(longest_ns / 1e9, rel=1e-9)
    assert ("rank" in found["by"]) == (name in {"jacobi-mpi", "two-gpu-sendrecv"})


def test_a_graph_that_explains_too_little_is_refused(corpus: Path) -> None:
    """Most work of this report ran in CUDA graphs, whose kernels it does not hold."""
    ran = invoke(["ccl-bench", "what-if", str(corpus / "nsys" / "cuda-graphs")])
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "differs from the recorded one by -89.9%" in ran.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--network", "fast"], "'fast' is not a network"),
        (["--overlap", "all_gather"], "there is no comm 'all_gather'"),
        (["--without", "stage:0"], "the recording shows no stage"),
        (["--without", "worker:0/0"], "names no operations"),
    ],
)
def test_what_a_run_does_not_have_is_wrong_usage(corpus: Path, options: list[str], problem: str) -> None:
    ran = invoke(["ccl-bench", "what-if", str(corpus / "kineto" / "nccl-args"), *options])
    assert (ran.returncode, ran.stdout) == (2, "")
    assert problem in ran.stderr


def test_a_rank_alone_has_no_other_to_take_after(corpus: Path) -> None:
    ran = invoke(["ccl-bench", "what-if", str(corpus / "kineto" / "nccl-args"), "--without", "rank:0"])
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "no other rank shows" in ran.stderr
