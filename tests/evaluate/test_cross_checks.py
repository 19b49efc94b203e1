"""Sources of a run against each other: step times, memory held and memory there is, files without content."""

import gzip
import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from commands import invoke, recorded_by
from small_runs import trace, write

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.analysis.findings import memory_beyond_device
from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.inspect import inspect
from ccl_bench.run import open_run
from ccl_bench.testing import plans, write_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"


@pytest.fixture
def run(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def pair(tmp_path):
    """Return the run as two of its ranks recorded it."""
    return recorded_by((0, 1), tmp_path / "pair")


def codes(place):
    return [finding.code for finding in inspect(open_run(place), jobs=1).issues]


def test_a_file_of_step_times_far_from_the_traces_is_reported(pair):
    """The bundled run was timed without its profiler, which makes its steps about a third longer."""
    found = [f for f in inspect(open_run(pair), jobs=1).issues if f.code == "step-times-differ"]
    assert len(found) == 1
    assert "0.257 s in step_times_per_rank.json" in found[0].message


def test_a_file_that_says_what_the_traces_say_is_not_remarked(pair):
    trace_steps = {}
    for rank in range(2):
        with gzip.open(pair / f"kineto_trace_{rank}.json.gz") as stream:
            events = json.load(stream)["traceEvents"]
        steps = [e for e in events if e.get("name", "").startswith("ProfilerStep#") and e["ph"] == "X"]
        trace_steps[str(rank)] = [step["dur"] / 1e6 for step in sorted(steps, key=lambda e: e["ts"])]
    (pair / "step_times_per_rank.json").write_text(json.dumps(trace_steps))
    assert "step-times-differ" not in codes(pair)


NO_DEVICES = pl.DataFrame({"memory_bytes": pl.Series([], dtype=pl.Int64)})


def memory(held, has):
    peaks = pl.DataFrame({"peak_reserved_bytes": [held]})
    facts = Facts(gpu_hbm_bytes=Fact(has, "run_metadata.json"))
    return [f.code for f in memory_beyond_device(peaks, NO_DEVICES, facts)]


def test_an_allocator_that_held_more_than_the_device_has_is_an_error():
    assert memory(held=90 * 10**9, has=80 * 10**9) == ["memory-beyond-device"]
    assert memory(held=70 * 10**9, has=80 * 10**9) == []


def test_memory_of_a_device_nobody_names_contradicts_nothing():
    peaks = pl.DataFrame({"peak_reserved_bytes": [10**12]})
    assert memory_beyond_device(peaks, NO_DEVICES, Facts()) == []


def test_mistakes_in_a_side_file_stay_with_the_numbers_that_use_it(run):
    (run / "step_times_per_rank.json").write_text('{"0": [0.25, -5], "1": [0.25], "2": [0.25], "3": [0.25]}')
    found = {r.metric: r for r in evaluate(open_run(run), ["iteration_wall_clock_time", "coll_call_num"])}
    assert [f.code for f in found["iteration_wall_clock_time"].findings] == ["file-mistakes"]
    assert found["coll_call_num"].findings == []


LACKING = "1 of 4 ranks have no step times: 2"


def without_rank_2(place):
    """Take rank 2 out of the step times of a run, and return the mean of what the slowest other rank took."""
    file = place / "step_times_per_rank.json"
    times = json.loads(file.read_text())
    del times["2"]
    file.write_text(json.dumps(times))
    return sum(map(max, zip(*times.values(), strict=True))) / len(times["0"])


def test_step_times_that_lack_a_rank_are_a_finding_on_every_number_from_them(run):
    seconds = without_rank_2(run)
    names = ["iteration_wall_clock_time", "throughput_tokens_sec", "coll_call_num"]
    step, rate, calls = evaluate(open_run(run), names)
    assert step.value == pytest.approx(seconds)
    for result in (step, rate):
        (finding,) = (f for f in result.findings if f.code == "step-times-lack-ranks")
        assert (finding.severity, finding.message) == ("warning", LACKING)
    assert calls.findings == []
    assert LACKING in invoke(f"ccl-bench validate {run}").stdout


def test_ranks_of_a_job_are_known_from_metadata_card_or_traces(run):
    without_rank_2(run)
    stating = [run / "workload_card.yaml", run / "run_metadata.json", *run.glob("kineto_trace_[01].json.gz")]
    for file in stating:  # rank 2 has a trace to the end, which states the size of the job
        assert [f.message for f in open_run(run).findings if f.code == "step-times-lack-ranks"] == [LACKING]
        file.unlink()


def test_where_no_size_of_the_job_is_known_the_traced_ranks_need_step_times(tmp_path):
    for rank in (0, 1, 3):
        write(tmp_path / f"kineto_trace_{rank}.json", trace(rank, world=None, at=rank))
    (tmp_path / "step_times_per_rank.json").write_text('{"0": [1.0], "3": [1.2]}')
    found = {finding.code: finding.message for finding in open_run(tmp_path).findings}
    assert found["step-times-lack-ranks"] == "1 of 3 ranks have no step times: 1"


def test_without_traces_the_stated_size_of_a_job_shows_which_step_times_are_missing(tmp_path):
    (tmp_path / "run_metadata.json").write_text('{"world_size": 4}')
    (tmp_path / "step_times_per_rank.json").write_text('{"0": [1.0, 1.2], "1": [1.5, 1.6]}')
    (found,) = evaluate(open_run(tmp_path), ["straggler"])
    messages = {finding.code: finding.message for finding in found.findings}
    assert messages["step-times-lack-ranks"] == "2 of 4 ranks have no step times: 2, 3"
    (tmp_path / "run_metadata.json").write_text('{"world_size": 2}')
    assert codes(tmp_path) == []


UNUSABLE = [
    ("peak_memory_allocated", "memory_stats.json", "[1, 2]"),
    ("peak_memory_allocated", "memory_stats.json", '{"0": {"peak_reserved_bytes": "x"}, "1": [1]}'),
    ("straggler", "step_times_per_rank.json", '{"0": [1, 2'),
    ("straggler", "step_times_per_rank.json", '{"0": [-1.0], "1": null}'),
    ("iteration_wall_clock_time", "step_times_per_rank.json", '{"0": 1.1, "1": 1.3}'),
    ("token_to_expert_assignment", "moe_assignments.json", '{"0": {"0": "x", "1": 80}, "1": null}'),
    ("training_quality", "training_metrics.json", "[]"),
]


@pytest.mark.parametrize(("metric", "file", "text"), UNUSABLE)
def test_a_file_that_holds_nothing_usable_is_named_where_it_is_missed(tmp_path, metric, file, text):
    (tmp_path / "run_metadata.json").write_text('{"world_size": 2}')
    (tmp_path / file).write_text(text)
    answer = invoke(f"ccl-metrics --trace {tmp_path} --metric {metric} --format json")
    (found,) = json.loads(answer.stdout)
    assert (found["status"], found["reason"]) == ("not_measurable", f"{file} contains no usable data")
    (finding,) = (f for f in found["findings"] if f["file"] == file)
    assert finding["code"] in {"file-unusable", "file-malformed"}
    assert f"error: {file}: {finding['message']} ({finding['code']})" in answer.stderr


def test_an_unusable_file_is_named_beside_the_reason_of_the_traces(tmp_path):
    write_run(plans.two_ranks(), tmp_path)
    (tmp_path / "step_times_per_rank.json").write_text('{"0": 1.1, "1": 1.3}')
    next(tmp_path.glob("*1*.json*")).unlink()
    answer = invoke(f"ccl-metrics --trace {tmp_path} --metric straggler --format json")
    (found,) = json.loads(answer.stdout)
    assert found["reason"] == "only one rank has a trace, but waiting compares ranks"
    assert "file-unusable" in {finding["code"] for finding in found["findings"]}
    assert "step_times_per_rank.json: holds nothing usable" in answer.stderr


def test_a_card_with_a_syntax_error_is_reported(tmp_path):
    run = recorded_by((0,), tmp_path / "run")
    card = run / "workload_card.yaml"
    card.write_text(card.read_text().replace("workload:", "workload: [", 1))
    assert "file-malformed" in codes(run)


def test_a_file_named_as_card_must_be_one(run):
    with pytest.raises(InputError, match="is not a workload card"):
        open_run(run, card=run / "run_metadata.json")
