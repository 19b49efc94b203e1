"""Sources that contradict each other on a fact: reported, and attached to the numbers that use the fact."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from ccl_bench.analysis.facts import Fact
from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.inspect import inspect
from ccl_bench.evaluate.validate import validate
from ccl_bench.run import open_run
from ccl_bench.run.documents import RunDocuments
from ccl_bench.run.facts import contradictions

EXAMPLE = Path(__file__).parents[2] / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"
CODE = "facts-disagree"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "run"))


def _stated(run: Path, **values: object) -> None:
    path = run / "run_metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _messages(run: Path) -> list[str]:
    return [finding.message for finding in open_run(run).findings if finding.code == CODE]


def test_the_bundled_runs_do_not_contradict_themselves() -> None:
    assert [_messages(run) for run in sorted(EXAMPLE.parent.iterdir()) if run.is_dir()] == [[], [], []]


def test_card_and_metadata_that_disagree_are_named_with_both_values(run: Path) -> None:
    _stated(run, seq_len=256)
    assert _messages(run) == [
        "seq_len is 256 in run_metadata.json and 128 in the workload card; the first is used"
    ]


def test_traces_take_part(run: Path) -> None:
    _stated(run, world_size=8)
    (message,) = _messages(run)
    assert message == (
        "world_size is 8 in run_metadata.json and 4 in the workload card "
        "and 4 in distributedInfo of the traces; the first is used"
    )


def test_the_number_of_traces_contradicts_nothing(run: Path) -> None:
    for trace in run.glob("kineto_trace_[23]*"):
        trace.unlink()
    assert _messages(run) == []


def test_a_number_that_uses_the_fact_carries_the_finding_and_others_do_not(run: Path) -> None:
    _stated(run, seq_len=256, tokens_per_step=16 * 256)
    names = ["mfu", "throughput_tokens_sec", "gpu_busy", "fsdp_overhead", "traffic_distribution"]
    results = evaluate(open_run(run), names)
    with_finding = {r.metric for r in results if CODE in {finding.code for finding in r.findings}}
    assert with_finding <= {"mfu"}

    _stated(run, tokens_per_step=None)
    results = evaluate(open_run(run), names)
    with_finding = {r.metric for r in results if CODE in {finding.code for finding in r.findings}}
    assert "throughput_tokens_sec" in with_finding
    assert with_finding.isdisjoint({"gpu_busy", "fsdp_overhead", "traffic_distribution"})


def test_a_table_across_ranks_passes_on_the_facts_it_was_made_with(run: Path) -> None:
    card = run / "workload_card.yaml"
    card.write_text(
        card.read_text().replace("    tp: 2\n", "    tp: 4\n").replace("dp_shard: 2", "dp_shard: 1")
    )
    config = run / "train.toml"
    config.write_text("[parallelism]\ntensor_parallel_degree = 2\n[training]\nseq_len = 128\n")
    assert any(message.startswith("tp is 4") for message in _messages(run))
    names = ["traffic_distribution", "gpu_busy"]
    dimension, busy = evaluate(open_run(run), names)
    assert CODE in {finding.code for finding in dimension.findings}
    assert CODE not in {finding.code for finding in busy.findings}


def test_a_refusal_for_a_contradicted_fact_says_so(run: Path) -> None:
    _stated(run, world_size=1)
    (overlap,) = evaluate(open_run(run), ["comm_comp_overlap"])
    assert overlap.status == "not_applicable"
    assert [finding.code for finding in overlap.findings] == [CODE]


def test_a_default_of_the_configuration_contradicts_nothing(run: Path) -> None:
    (run / "train.toml").write_text("[training]\nseq_len = 128\n[job]\ndescription = 'x'\n")
    assert _messages(run) == []


def test_rounded_parameters_and_other_spellings_agree(run: Path) -> None:
    card = run / "workload_card.yaml"
    text = card.read_text().replace("hf_url: null", "hf_url: https://huggingface.co/meta-llama/Llama-3.1-8B")
    text = text.replace("num_params: 1574144", "num_params: 8000000000")
    card.write_text(text)
    assert not any("num_params is" in message for message in _messages(run))


def _agree(name: str, *values: object) -> bool:
    sources = [{name: Fact(value, f"file {number}")} for number, value in enumerate(values)]
    return not contradictions(sources, RunDocuments(), [])


@pytest.mark.parametrize("name", ["num_params", "num_params_embedding", "num_params_active"])
def test_parameters_of_two_sources_may_differ_by_a_twentieth_of_the_larger(name: str) -> None:
    assert _agree(name, 100, 95)
    assert _agree(name, 95, 100)
    assert not _agree(name, 100, 94)
    assert not _agree(name, 94, 100)
    assert not _agree(name, 100, 100, 94)


def test_no_other_number_is_rounded() -> None:
    assert _agree("seq_len", 4096, 4096)
    assert not _agree("seq_len", 4096, 4095)
    assert not _agree("seq_len", 4096, "4096")


def test_words_agree_but_for_case_and_separators() -> None:
    assert _agree("pp_schedule", "Interleaved 1F1B", "interleaved_1f1b")
    assert not _agree("pp_schedule", "interleaved", "1f1b")


def test_precisions_agree_if_devices_have_one_peak_for_both() -> None:
    assert _agree("precision", "fp8", "float8")
    assert not _agree("precision", "bf16", "fp32")
    assert not _agree("precision", "strange", "odd")
    assert not _agree("pp_schedule", "fp8", "float8")


def test_traces_of_jobs_of_two_sizes_are_reported(tmp_path: Path) -> None:
    for rank, size in ((0, 2), (1, 4)):
        event = {"ph": "X", "cat": "cpu_op", "name": f"a{rank}", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
        content = {
            "schemaVersion": 1,
            "distributedInfo": {"rank": rank, "world_size": size},
            "traceEvents": [event],
        }
        (tmp_path / f"kineto_trace_{rank}.json").write_text(json.dumps(content))
    assert _messages(tmp_path) == ["the traces state that the job had 2 and 4 ranks"]


def test_a_device_in_the_card_that_no_trace_saw_is_reported_with_the_numbers_that_rest_on_it(
    tmp_path: Path,
) -> None:
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84_987_740_160, "numSms": 108}
    step = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#1",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 9,
    }
    content = {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": {"rank": 0, "world_size": 1},
        "traceEvents": [step],
    }
    (tmp_path / "kineto_trace_0.json").write_text(json.dumps(content))
    card = "workload:\n  hardware:\n    xpu_spec: {{type: GPU, model: {}, total_count: 1}}\n"
    (tmp_path / "workload_card.yaml").write_text(card.format("nvidia_h100"))
    (mfu,) = evaluate(open_run(tmp_path), ["mfu"])
    (reported,) = [finding.message for finding in mfu.findings if finding.code == CODE]
    assert reported.endswith("but NVIDIA A100-SXM4-80GB in the traces, which are used")

    (tmp_path / "workload_card.yaml").write_text(card.format("A100"))
    (mfu,) = evaluate(open_run(tmp_path), ["mfu"])
    assert CODE not in {finding.code for finding in mfu.findings}


def test_inspect_and_validate_show_it_with_the_way_out(run: Path) -> None:
    _stated(run, seq_len=256)
    found = [issue for issue in inspect(open_run(run)).issues if issue.code == CODE]
    assert [(issue.severity, issue.fix) for issue in found] == [
        ("warning", "correct the source that is wrong")
    ]
    assert CODE in {issue.code for issue in validate(str(run)).issues}


def test_an_empty_directory_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace of a known format") as error:
        open_run(tmp_path)
    assert "kineto" in error.value.message
    assert "run_metadata.json" in error.value.message


def test_a_card_from_elsewhere_does_not_make_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_run(tmp_path, card=EXAMPLE / "workload_card.yaml")


def test_a_side_file_alone_makes_a_run(tmp_path: Path) -> None:
    (tmp_path / "run_metadata.json").write_text('{"world_size": 2}')
    assert open_run(tmp_path).facts.world_size.value == 2


def test_a_configuration_from_elsewhere_is_resolved_for_the_ranks(tmp_path: Path, run: Path) -> None:
    (run / "workload_card.yaml").unlink()
    config = tmp_path / "elsewhere.toml"
    config.write_text("[parallelism]\ntensor_parallel_degree = 2\n[training]\nlocal_batch_size = 3\n")
    facts = open_run(run, config=config).facts
    assert (facts.tp.value, facts.dp_shard.value) == (2, 2)
    with pytest.raises(InputError):
        open_run(run, config=tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("precision", "reported"),
    [
        ("bf16", ["bf16 in the workload card and fp8 in the training configuration; the first is used"]),
        ("Float8_e4m3fn", []),
    ],
)
def test_a_configuration_that_computes_in_float8_takes_part(
    precision: str, reported: list[str], run: Path
) -> None:
    card = run / "workload_card.yaml"
    text = re.sub(r"precision: .*", f"precision: {precision}", card.read_text())
    assert precision in text
    card.write_text(text)
    (run / "train.toml").write_text(
        '[model]\nconverters = ["quantize.linear.float8"]\n[training]\nsteps = 9\n'
    )
    assert [message.removeprefix("precision is ") for message in _messages(run)] == reported
