"""A rank whose recording broke off changes no straggler: whole steps count, else the whole traces."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import cross_plain
import pytest
from cross_runs import documents, measured, result, results

from ccl_bench.testing import Plan, Straggler, damage, trace_path, write_run

SECOND_US = 1e6


def cut_rank(run: Path, folder: Path, rank: int, share: float) -> Path:
    """Copy a run; of one rank's trace only the first share of its bytes."""
    for path in run.iterdir():
        text = gzip.decompress(path.read_bytes())
        kept = int(len(text) * share) if path.name == f"megatron_kineto_{rank}.json.gz" else len(text)
        (folder / path.name.removesuffix(".gz")).write_bytes(text[:kept])
    return folder


def lag_without(run: Path, rank: int) -> tuple[float, str]:
    """Return lag, s, and the rank that waits least, of a plain count over all files but one."""
    traces = {each: trace for each, trace in documents(run).items() if each != rank}
    durations = {each: [d for _, d in cross_plain.nccl_kernels(trace)] for each, trace in traces.items()}
    waits = cross_plain.waits(durations)
    return (max(waits.values()) - min(waits.values())) / SECOND_US, str(min(waits, key=lambda r: waits[r]))


@pytest.mark.parametrize(("rank", "share"), [(0, 0.97), (3, 0.8)])
def test_a_real_trace_cut_in_its_only_step_counts_like_a_missing_one(
    rank: int, share: float, corpus: Path, tmp_path: Path
):
    run = corpus / "kineto" / "megatron-tp8"
    lag, least = lag_without(run, rank)
    found = measured(cut_rank(run, tmp_path, rank, share), "straggler")
    assert found.details["straggler_lag_s"] == pytest.approx(lag)
    assert found.details["slowest_rank"] == least
    assert rank not in found.ranks
    assert found.details["members_complete"] is False
    assert "collectives-lacking" in {finding.code for finding in found.findings}


PLAN = Plan(dp_shard=2, tp=2, steps=5, layers=1, stragglers=(Straggler(1, layer_ns=90_000),), jitter_ns=700)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    write_run(PLAN, folder)
    return folder


@pytest.mark.parametrize(("rank", "share"), [(1, 0.6), (2, 0.8)])
def test_steps_that_are_whole_in_every_trace_give_the_lag_of_the_plan(
    rank: int, share: float, whole: Path, tmp_path: Path
):
    expected = write_run(PLAN, tmp_path / "run")
    damage.truncate(trace_path(tmp_path / "run", rank), share)
    found, straggler = results(tmp_path / "run", "straggler_lag_16", "straggler")
    lags = {}
    for step in PLAN.step_numbers:
        waits = [expected.wait_ns(each, step) for each in range(PLAN.world_size)]
        lags[str(step)] = (max(waits) - min(waits)) / 1e9
    reported = found.details["per_step_s"]
    assert 1 <= len(reported) < PLAN.steps
    assert reported == pytest.approx({step: lags[step] for step in reported})
    assert found.value == pytest.approx(sum(reported.values()) / len(reported))
    assert found.details["members_complete"] is True
    details = straggler.details
    assert details["slowest_rank"] == "1"
    assert list(details["per_step_ratio"]) == list(reported)
    (finding,) = [finding for finding in found.findings if finding.code == "collectives-lacking"]
    assert f"in {PLAN.steps - len(reported)} of {PLAN.steps} steps" in finding.message


def test_a_missing_file_of_a_generated_run_leaves_the_other_waits_alone(whole: Path, tmp_path: Path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    trace_path(run, 3).unlink()
    found = measured(run, "straggler")
    assert (found.details["slowest_rank"], found.details["members_complete"]) == ("1", False)


def without_calls(path: Path, count: int, per_step: int) -> None:
    """Take the last communication kernels out of each step of a trace, as where a buffer overflowed."""
    trace: dict[str, Any] = json.loads(path.read_text())
    kernels = [
        e for e in trace["traceEvents"] if e.get("cat") == "kernel" and "Collective name" in e.get("args", {})
    ]
    ordered = sorted(kernels, key=lambda event: event["ts"])
    lost = [event for at in range(per_step, len(ordered) + 1, per_step) for event in ordered[at - count : at]]
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event not in lost]
    path.write_text(json.dumps(trace))


def test_where_every_trace_lacks_calls_in_every_step_there_is_no_lag(tmp_path: Path):
    plan = Plan(dp_shard=2, steps=2, layers=3)
    expected = write_run(plan, tmp_path)
    per_step = len(expected.operations) // plan.steps
    without_calls(trace_path(tmp_path, 0), 2, per_step)
    without_calls(trace_path(tmp_path, 1), 3, per_step)
    found = result(tmp_path, "straggler")
    assert found.status == "not_measurable"
    assert "whole steps" in found.reason
