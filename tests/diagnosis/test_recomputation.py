"""Recomputation is found, and only that: in real recordings on the CPU, and in generated ones of devices."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checkpointed_training import CHECKPOINTED, HEALTHY, LAYERS, LINEAR, STEPS
from injected import SHARDED, TOGETHER, diagnosed, step_s
from recordings import recording

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis.diagnose import diagnose, diagnose_loaded, needed_tables
from ccl_bench.diagnosis.gains import Gain
from ccl_bench.evaluate.load import load_tables
from ccl_bench.run import open_run
from ccl_bench.testing import trace_path, write_run

EVALUATE = "autograd::engine::evaluate_function: "
NOTHING = "no operator of the forward pass runs again in the backward pass"


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run for each way in `checkpointed_training.py`."""
    return recording(tmp_path_factory, "checkpointed")


def _operators(run: Path) -> list[dict[str, Any]]:
    events = msgspec.json.decode((run / "rank0.json").read_bytes())["traceEvents"]
    return [event for event in events if event.get("cat") == "cpu_op"]


def _stretches_us(run: Path) -> list[float]:
    """Return the length of each stretch that runs forward again, by loops over all events.

    The program calls `aten::linear` in its layers alone, and ends each with `aten::layer_norm`.
    """
    operators = _operators(run)
    nodes = [each for each in operators if each["name"].startswith(EVALUATE)]

    def is_in_node(event: dict[str, Any]) -> bool:
        return any(node["ts"] <= event["ts"] < node["ts"] + node["dur"] for node in nodes)

    linear = sorted(each["ts"] for each in operators if each["name"] == "aten::linear" and is_in_node(each))
    ends = sorted(
        each["ts"] + each["dur"]
        for each in operators
        if each["name"] == "aten::layer_norm" and is_in_node(each)
    )
    return [end - start for start, end in zip(linear[::LINEAR], ends, strict=True)]


def _recomputations(run: Path) -> pl.DataFrame:
    table: pl.DataFrame = load_tables(open_run(run), ["recomputations"], jobs=1, use_cache=False).inputs[
        "recomputations"
    ]
    return table


@pytest.mark.parametrize("way", CHECKPOINTED)
def test_each_layer_is_recomputed_once_a_step(recordings: Path, way: str) -> None:
    found = _recomputations(recordings / way)
    lengths_us = _stretches_us(recordings / way)
    assert found.height == len(lengths_us) == LAYERS * STEPS
    took = (found["end_ns"] - found["start_ns"]).to_list()
    assert took == pytest.approx([1000 * length for length in lengths_us], abs=2)


def test_a_recorded_run_would_gain_what_it_recomputes(
    recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else runs meanwhile on the CPU. How busy the machine was while it recorded does not matter."""
    monkeypatch.setattr(Gain, "is_sure", True)
    diagnoses = diagnose(open_run(recordings / "reentrant"), jobs=1, use_cache=False).diagnoses
    (found,) = (each for each in diagnoses if each.name == "recomputation")
    took_us = sum(_stretches_us(recordings / "reentrant"))
    assert found.gain_s == pytest.approx(took_us / STEPS / 1e6, rel=1e-3)
    assert "record a memory snapshot" in found.remedy


def test_hooks_without_a_name_and_a_snapshot_are_no_diagnosis(recordings: Path) -> None:
    found = diagnose(open_run(recordings / "not reentrant"), jobs=1, use_cache=False)
    assert "neither a name nor a memory snapshot" in found.silent["recomputation"]


@pytest.mark.parametrize("way", HEALTHY)
def test_a_backward_pass_that_only_computes_gradients_is_left_alone(recordings: Path, way: str) -> None:
    """Gradients multiply matrices too, and with `create_graph` they record for autograd."""
    names = [each["name"] for each in _operators(recordings / way)]
    assert names.count("aten::mm") >= 2 * LINEAR * LAYERS * STEPS
    assert _recomputations(recordings / way).is_empty()
    found = diagnose(open_run(recordings / way), jobs=1, use_cache=False)
    assert found.silent["recomputation"] == NOTHING


ALONE = replace(SHARDED, dp_shard=1, layers=20)


@pytest.mark.parametrize(("layers", "share", "is_reported"), [(3, 0.047, False), (4, 0.062, True)])
def test_a_small_share_of_recomputation_is_what_the_fix_would_leave(
    layers: int, share: float, is_reported: bool, tmp_path: Path
) -> None:
    plan = replace(ALONE, recomputed_layers=layers)
    gain_s = step_s(plan) - step_s(ALONE)
    assert gain_s / step_s(plan) == pytest.approx(share, abs=1e-3)
    found = diagnosed(plan, tmp_path).diagnoses
    assert [each.name for each in found] == ["recomputation"] * is_reported
    assert [each.gain_s for each in found] == [pytest.approx(gain_s, abs=1e-9)] * is_reported


def test_hosts_that_launch_slowly_also_launch_less(tmp_path: Path) -> None:
    """The time of the host counts where the device waits for it, not that of the kernels."""
    plan = replace(ALONE, layers=4, recomputed_layers=4, host=replace(TOGETHER, launch_ns=200_000))
    gain_s = step_s(plan) - step_s(replace(plan, recomputed_layers=0))
    found = {each.name: each for each in diagnosed(plan, tmp_path).diagnoses}
    assert found["recomputation"].gain_s == pytest.approx(gain_s, rel=0.02)
    assert gain_s > 2 * 4 * plan.forward_ns / 1e9  # type: ignore[operator]


def test_a_device_that_records_its_gradients_recomputes_nothing(tmp_path: Path) -> None:
    """The operators of the backward pass get sequence numbers, as `create_graph=True` gives them."""
    write_run(ALONE, tmp_path)
    path = trace_path(tmp_path, 0)
    content = json.loads(path.read_text(encoding="utf-8"))
    nodes = {
        (event["tid"], event["ts"] + event["dur"])
        for event in content["traceEvents"]
        if str(event.get("name")).startswith(EVALUATE)
    }
    threads = {thread for thread, _ in nodes}
    changed = 0
    for event in content["traceEvents"]:
        if (
            event.get("cat") == "cpu_op"
            and event["tid"] in threads
            and "Sequence number" not in event["args"]
        ):
            event["args"] |= {"Sequence number": 10_000_000, "Fwd thread id": 0}
            changed += 1
    assert changed >= len(nodes)
    path.write_text(json.dumps(content), encoding="utf-8")
    found = diagnose(open_run(tmp_path), jobs=1, use_cache=False)
    assert found.silent["recomputation"] == NOTHING


def test_a_run_without_a_backward_pass_gets_this_reason(tmp_path: Path) -> None:
    write_run(ALONE, tmp_path)
    path = trace_path(tmp_path, 0)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["traceEvents"] = [
        event for event in content["traceEvents"] if not str(event.get("name")).startswith(EVALUATE)
    ]
    path.write_text(json.dumps(content), encoding="utf-8")
    found = diagnose(open_run(tmp_path), jobs=1, use_cache=False)
    assert found.silent["recomputation"] == "the traces show no backward pass"


CORPUS = os.environ.get("CCL_BENCH_CORPUS")


@pytest.mark.skipif(not CORPUS, reason="CCL_BENCH_CORPUS is not set")
def test_a_recorded_device_would_gain_the_kernels_that_it_runs_again() -> None:
    """A ResNet on four MI300X: four nodes of each step run a block of convolutions again.

    Its forward pass alone calls `aten::conv2d`; between the first and the last recording operator of a node
    with one, all launches are of the block. The devices are busy throughout. Nothing names it checkpointing,
    so the rule is silent unless what is found counts as named.
    """
    run = Path(str(CORPUS)) / "conclusions" / "healthy_nosync"
    content = json.loads(gzip.decompress((run / "rank0_trace.json.gz").read_bytes()))
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    nodes = [each for each in events if each["name"].startswith(EVALUATE)]
    convolutions = [each for each in events if each["name"] == "aten::conv2d"]
    again = [node for node in nodes if any(_contains(node, each) for each in convolutions)]
    recording_ops = [
        each
        for each in events
        if each["cat"] == "cpu_op" and each["args"].get("Fwd thread id") == 0 and _is_recorded(each)
    ]
    calls = [each for each in events if each["cat"] == "cuda_runtime"]
    correlations = set()
    for node in again:
        inside = [each for each in recording_ops if _contains(node, each)]
        start, end = min(map(_start, inside)), max(map(_end, inside))
        correlations |= {
            each["args"]["correlation"]
            for each in calls
            if start <= each["ts"] < end and each["tid"] == node["tid"]
        }
    took_us = sum(
        each["dur"]
        for each in events
        if each["cat"] in {"kernel", "gpu_memcpy", "gpu_memset"}
        and each["args"]["correlation"] in correlations
    )
    assert len(again) == 4 * 8
    loaded = load_tables(open_run(run), needed_tables(), jobs=1)
    found_again = loaded.inputs["recomputations"]
    assert not found_again["is_named"].any()
    loaded.inputs["recomputations"] = found_again.with_columns(is_named=pl.lit(value=True))
    diagnoses = diagnose_loaded(open_run(run), loaded).diagnoses
    (found,) = (each for each in diagnoses if each.name == "recomputation")
    assert found.gain_s == pytest.approx(took_us / 8 / 1e6, rel=0.02)


def _start(event: dict[str, Any]) -> float:
    return float(event["ts"])


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def _contains(node: dict[str, Any], event: dict[str, Any]) -> bool:
    return bool(node["tid"] == event["tid"] and _start(node) <= event["ts"] < _end(node))


def _is_recorded(event: dict[str, Any]) -> bool:
    return "Sequence number" in event["args"] and not event["name"].startswith(EVALUATE)
