"""Sources of a run against each other: step times, and memory held against memory there is."""

import gzip
import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.analysis.findings import source_findings
from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.inspect import inspect
from ccl_bench.run import open_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"


@pytest.fixture
def run(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "run")
    return tmp_path / "run"


def codes(place):
    return [finding.code for finding in inspect(open_run(place), jobs=1).issues]


def test_a_file_of_step_times_far_from_the_traces_is_reported(run):
    """The bundled run was timed without its profiler, which makes its steps about a third longer."""
    found = [f for f in inspect(open_run(run), jobs=1).issues if f.code == "step-times-differ"]
    assert len(found) == 1
    assert "0.257 s in step_times_per_rank.json" in found[0].message


def test_a_file_that_says_what_the_traces_say_is_not_remarked(run):
    trace_steps = {}
    for rank in range(4):
        with gzip.open(run / f"kineto_trace_{rank}.json.gz") as stream:
            events = json.load(stream)["traceEvents"]
        steps = [e for e in events if e.get("name", "").startswith("ProfilerStep#") and e["ph"] == "X"]
        trace_steps[str(rank)] = [step["dur"] / 1e6 for step in sorted(steps, key=lambda e: e["ts"])]
    (run / "step_times_per_rank.json").write_text(json.dumps(trace_steps))
    assert "step-times-differ" not in codes(run)


def memory(held, has):
    peaks = pl.DataFrame({"peak_reserved_bytes": [held]})
    facts = Facts(gpu_hbm_bytes=Fact(has, "run_metadata.json"))
    return [f.code for f in source_findings({"memory_peaks": peaks, "facts": facts})]


def test_an_allocator_that_held_more_than_the_device_has_is_an_error():
    assert memory(held=90 * 10**9, has=80 * 10**9) == ["memory-beyond-device"]
    assert memory(held=70 * 10**9, has=80 * 10**9) == []


def test_memory_of_a_device_nobody_names_contradicts_nothing():
    peaks = pl.DataFrame({"peak_reserved_bytes": [10**12]})
    assert source_findings({"memory_peaks": peaks, "facts": Facts()}) == []


def test_mistakes_in_a_side_file_stay_with_the_numbers_that_use_it(run):
    (run / "step_times_per_rank.json").write_text('{"0": [0.25, -5], "1": [0.25]}')
    found = {r.metric: r for r in evaluate(open_run(run), ["iteration_wall_clock_time", "coll_call_num"])}
    assert [f.code for f in found["iteration_wall_clock_time"].findings] == ["file-mistakes"]
    assert found["coll_call_num"].findings == []


def test_a_card_with_a_syntax_error_is_reported(run):
    card = run / "workload_card.yaml"
    card.write_text(card.read_text().replace("workload:", "workload: [", 1))
    assert "file-unreadable" in codes(run)


def test_a_file_named_as_card_must_be_one(run):
    with pytest.raises(InputError, match="is not a workload card"):
        open_run(run, card=run / "run_metadata.json")
