"""Which source a number comes from where several have it."""

from pathlib import Path

import pytest
from small_runs import codes, measured, trace, write, write_ranks

from ccl_bench.base.errors import UsageError
from ccl_bench.run import open_run

CARD = """
workload:
  model: {phase: training, precision: bf16, model_arch: {num_layers: 5}}
  data: {batch_size: 4, batch_size_scope: global, seq_len: 100}
  hardware:
    xpu_spec: {type: GPU, model: H100-SXM5-80GB, total_count: 4}
hf_url: https://huggingface.co/meta-llama/Llama-3.1-8B
"""

CONFIG = """
[model]
name = "llama3"
[training]
seq_len = 999
global_batch_size = 77
steps = 10
[parallelism]
tensor_parallel_degree = 3
"""


def step_time(folder: Path):
    """Return the result of the step time."""
    (found,) = measured(folder, "iteration_wall_clock_time")
    return found


def test_without_a_side_file_the_steps_of_the_traces_count(tmp_path: Path):
    found = step_time(write_ranks(tmp_path))

    assert (found.value, found.window) == (pytest.approx(100e-6), "ProfilerStep")


def test_step_durations_come_before_the_traces(tmp_path: Path):
    write(write_ranks(tmp_path) / "step_durations.json", {"3": 0.3})

    assert (step_time(tmp_path).value, step_time(tmp_path).window) == (0.3, "step_durations.json")


def test_step_times_come_before_step_durations(tmp_path: Path):
    write(write_ranks(tmp_path) / "step_durations.json", [0.3])
    write(tmp_path / "step_times.json", [0.2])

    assert (step_time(tmp_path).value, step_time(tmp_path).window) == (0.2, "step_times.json")


def test_step_times_of_each_rank_come_first(tmp_path: Path):
    write(write_ranks(tmp_path) / "step_durations.json", [0.3])
    write(tmp_path / "step_times.json", [0.2])
    write(tmp_path / "step_times_per_rank.json", {"0": [0.1, 0.5], "1": [0.4, 0.2]})

    found = step_time(tmp_path)

    assert (found.value, found.window) == (pytest.approx((0.4 + 0.5) / 2), "step_times_per_rank.json")


def test_a_file_of_damaged_durations_gives_way_to_the_next(tmp_path: Path):
    write(write_ranks(tmp_path) / "step_durations.json", [0.3])
    write(tmp_path / "step_times.json", ["fast", -1])

    assert (step_time(tmp_path).value, step_time(tmp_path).window) == (0.3, "step_durations.json")


def test_an_unreadable_file_gives_way_to_the_next_and_the_number_says_so(tmp_path: Path):
    write(write_ranks(tmp_path) / "step_durations.json", [0.3])
    (tmp_path / "step_times.json").write_text("[0.1, 0.")

    found = step_time(tmp_path)

    assert (found.value, found.window) == (0.3, "step_durations.json")
    assert codes(found) == ["file-malformed"]


def test_the_side_file_nearest_to_the_top_counts(tmp_path: Path):
    write(write_ranks(tmp_path) / "older" / "step_times.json", [0.9])
    write(tmp_path / "step_times.json", [0.2])

    assert step_time(tmp_path).value == 0.2


def test_a_stated_number_of_tokens_comes_before_batch_times_length(tmp_path: Path):
    write(tmp_path / "step_times.json", [0.5])
    write(tmp_path / "run_metadata.json", {"global_batch_size": 4, "seq_len": 100, "tokens_per_step": 350})

    (found,) = measured(tmp_path, "throughput_tokens_sec")

    assert found.value == 350 / 0.5
    assert found.details["tokens_per_step_source"] == "run_metadata.json"


def test_batch_times_length_names_both_sources(tmp_path: Path):
    write(tmp_path / "step_times.json", [0.5])
    write(tmp_path / "run_metadata.json", {"global_batch_size": 4})
    (tmp_path / "workload_card.yaml").write_text(CARD)

    (found,) = measured(tmp_path, "throughput_tokens_sec")

    assert found.value == 4 * 100 / 0.5
    assert (
        found.details["tokens_per_step_source"]
        == "global_batch_size x seq_len from run_metadata.json and workload card"
    )


def test_facts_come_from_metadata_then_card_then_catalog_then_configuration_then_traces(tmp_path: Path):
    write_ranks(tmp_path, ranks=2)
    write(tmp_path / "run_metadata.json", {"seq_len": 50})
    (tmp_path / "workload_card.yaml").write_text(CARD)
    (tmp_path / "train.toml").write_text(CONFIG)

    facts = {name: (fact.value, fact.source) for name, fact in open_run(tmp_path).facts}

    assert facts["seq_len"] == (50, "run_metadata.json")
    assert facts["global_batch_size"] == (4, "workload card")
    assert facts["world_size"] == (4, "workload card")
    assert facts["num_layers"] == (5, "workload card")
    assert facts["num_heads"] == (32, "catalog, meta-llama/Llama-3.1-8B")
    assert facts["tp"] == (3, "training configuration")


def test_the_configuration_comes_before_the_traces(tmp_path: Path):
    write_ranks(tmp_path, ranks=2)
    (tmp_path / "train.toml").write_text(CONFIG)

    facts = open_run(tmp_path).facts

    assert (facts.seq_len.value, facts.seq_len.source) == (999, "training configuration")
    assert (facts.world_size.value, facts.world_size.source) == (2, "distributedInfo of the traces")


def test_ranks_without_a_gap_are_counted_where_nothing_says_how_many_there_are(tmp_path: Path):
    for rank in range(3):
        write(tmp_path / f"kineto_trace_{rank}.json", trace(rank, world=None, at=rank))

    assert open_run(tmp_path).facts.world_size.value == 3


def test_ranks_with_a_gap_do_not_show_how_many_there_are(tmp_path: Path):
    for rank in (0, 1, 3):
        write(tmp_path / f"kineto_trace_{rank}.json", trace(rank, world=None, at=rank))

    assert open_run(tmp_path).facts.world_size is None


def test_traces_that_contradict_each_other_do_not_show_how_many_ranks_there_are(tmp_path: Path):
    write(tmp_path / "kineto_trace_0.json", trace(0, world=2))
    write(tmp_path / "kineto_trace_1.json", trace(1, world=4, at=1))

    assert open_run(tmp_path).facts.world_size is None


def test_a_mixture_of_experts_is_known_by_its_experts(tmp_path: Path):
    (tmp_path / "workload_card.yaml").write_text(
        "workload: {model: {phase: training, model_arch: {num_experts: 8}}}"
    )

    assert open_run(tmp_path).facts.is_moe.value is True


def test_one_rank_is_refused_before_its_trace_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "kineto_trace_0.json").write_text('{"schemaVersion": 1, "traceEvents": 5}')
    write(tmp_path / "run_metadata.json", {"world_size": 1})
    monkeypatch.setattr("ccl_bench.engine.read_trace.read_content", lambda *_, **__: pytest.fail("parsed"))

    found = measured(tmp_path, "coll_call_num", "comm_comp_overlap", "comm_comp_overlap_16")

    assert [result.status for result in found] == ["not_applicable"] * 3
    assert "world_size 1 in run_metadata.json" in found[0].reason
    assert [(result.findings, result.provenance.traces) for result in found] == [([], [])] * 3


def test_quality_of_an_inference_run_does_not_apply(tmp_path: Path):
    write(tmp_path / "training_metrics.json", {"loss": [1.0]})
    (tmp_path / "workload_card.yaml").write_text("workload: {model: {phase: inference}}")

    (found,) = measured(tmp_path, "training_quality")

    assert found.status == "not_applicable"
    assert "inference (workload card)" in found.reason


def test_an_unknown_metric_is_wrong_usage_and_names_the_nearest(tmp_path: Path):
    with pytest.raises(UsageError, match="unknown metric 'coll_call_nun'") as error:
        measured(write_ranks(tmp_path), "coll_call_nun")

    assert "did you mean coll_call_num" in error.value.fix
    assert error.value.exit_status == 2


def test_results_come_in_the_order_of_the_names_and_under_the_names_asked_for(tmp_path: Path):
    names = ["gpu_idle", "coll_call_num_16", "gpu_busy"]

    assert [result.metric for result in measured(write_ranks(tmp_path), *names)] == names
