"""torchtitan itself, two ranks on the CPU, recorded by its own profiler and gathered from where it writes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from collected import BIN, ENVIRONMENT, collect, files, torchrun
from commands import ROOT

from ccl_bench.card import read_card
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

ON_CPU = ROOT / "workloads/torchtitan"
CONFIG = """\
[model]
name = "llama3"
flavor = "tiny"
hf_assets_path = "assets/tokenizer"
[optimizer]
implementation = "for-loop"
[training]
dtype = "float32"
mixed_precision_param = "float32"
dataset = "c4_test"
dataset_path = "assets/text"
local_batch_size = 2
seq_len = 4096
steps = 8
[parallelism]
tensor_parallel_degree = 2
[profiling]
enable_profiling = true
profile_freq = 8
profiler_warmup = 2
profiler_active = 2
[metrics]
log_freq = 1
"""


@pytest.fixture(scope="module")
def recorded(once):
    """Return the folder in which torchtitan ran, and what the launcher said."""
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed: make test")

    def make(folder):
        (folder / "config.toml").write_text(CONFIG)
        data = [sys.executable, str(ON_CPU / "synthetic_data.py"), str(folder / "assets")]
        subprocess.run(data, env=ENVIRONMENT, check=True)
        path = f"{ON_CPU}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        options = ("--job.config_file", "config.toml", "--training.seq_len=64")
        command = torchrun(ON_CPU / "on_cpu.py", *options)
        asked = {"PYTHONPATH": path, "PATH": f"{BIN}:{ENVIRONMENT['PATH']}", "DEVICE": "cpu"}
        return collect(folder, "--output", "run", "--", *command, **asked)

    made = once("torchtitan", make)
    return made.folder, made.ended


def test_what_torchtitan_wrote_to_its_own_folder_is_in_the_run(recorded):
    folder, ended = recorded
    assert ended.returncode == 0, ended.stderr
    traces = {f"profile_trace/iteration_8/rank{rank}_trace.json" for rank in (0, 1)}
    assert traces | {"config.toml", "kineto_trace_0.json", "environment.json"} <= files(folder / "run")
    # What torchtitan wrote stays where it is, under torchtitan's own name.
    written = {f"profile_traces/iteration_8/rank{rank}_trace.json" for rank in (0, 1)}
    assert written <= files(folder / "outputs")


def test_torchtitans_profiler_is_the_only_one_and_the_first_rank_remarks_it(recorded):
    folder, _ = recorded
    assert (folder / "run/logs/torch.log").read_text().count("ccl-bench does not record") == 1
    assert "recording" not in json.loads((folder / "run/run_metadata.json").read_text())


def test_the_recorded_steps_are_the_last_of_the_window(recorded):
    folder, _ = recorded
    events = json.loads((folder / "run/kineto_trace_0.json").read_text())["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")}
    # 8 steps a window: 4 alone, 2 to warm up, 2 recorded, counted from 0.
    assert steps == {"ProfilerStep#6", "ProfilerStep#7"}


def test_the_card_says_what_file_and_command_line_set(recorded):
    folder, _ = recorded
    card = read_card(folder / "run/workload_card.yaml").value
    assert (card.framework.name, card.framework.version) == ("torchtitan", "0.2.2")
    assert (card.parallelism.tp, card.hardware.device.device_count) == (2, 2)
    # One data-parallel rank with 2 sequences; their length is the command line's.
    assert (card.data.batch_size, card.data.seq_len, card.model.steps) == (2, 64, 8)
    assert card.model.model_family == "llama3-tiny"
    assert open_run(folder / "run").facts.seq_len.value == 64


def test_the_loss_of_every_step_is_that_of_torchtitans_log(recorded):
    folder, _ = recorded
    uncoloured = re.sub("\x1b\\[[0-9;]*m", "", (folder / "run/logs/torch.log").read_text())
    lines = [line.split() for line in uncoloured.splitlines()]
    logged = {
        int(words[words.index("step:") + 1]): float(words[words.index("loss:") + 1])
        for words in lines
        if {"step:", "loss:", "grad_norm:"} <= {*words}
    }
    written = json.loads((folder / "run/training_metrics.json").read_text())
    assert written["step"] == list(range(1, 9)) == sorted(logged)
    assert written["loss"] == [pytest.approx(logged[step]) for step in written["step"]]
    assert len(written["grad_norm"]) == 8
    (quality,) = evaluate(open_run(folder / "run"), ["training_quality"])
    assert quality.value == pytest.approx(logged[8])


def test_the_cost_of_recording_is_taken_from_torchtitans_log(recorded):
    _, ended = recorded
    assert "step time under the profiler" in ended.stdout
