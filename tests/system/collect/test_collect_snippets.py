"""The snippets of the collection guide: run where they can be, else held to what can be checked."""

from __future__ import annotations

import ast
import json
import re
import subprocess

import pytest
from collected import ENVIRONMENT, collect, files, torchrun
from commands import ROOT
from launchers import asked

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

GUIDE = ROOT / "trace_gen"
SCRIPTS = sorted(GUIDE.glob("*/*.sh"))


def test_the_plain_loop_records_itself(tmp_path, torch_installed):
    ended = collect(tmp_path, "--output", "run", "--", *torchrun(GUIDE / "pytorch/train.py"))
    assert "Measurable" in ended.stdout, ended.stderr
    found = {
        result.metric: result
        for result in evaluate(open_run(tmp_path / "run"), ["coll_call_num", "iter_time_16"])
    }
    # 526,592 gradients of 4 bytes: DDP's first bucket holds 1 MiB, the second the rest.
    assert found["coll_call_num"].value == 2
    assert found["iter_time_16"].value > 0


def test_the_loop_without_ccl_bench_leaves_what_can_be_gathered(tmp_path, torch_installed):
    command = torchrun(GUIDE / "pytorch/without_ccl_bench.py")
    subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, check=False)
    ended = collect(tmp_path, "--output", "run", "--source", "traces")
    assert ended.returncode == 0, ended.stderr
    assert {"profile_trace/iteration_20/rank1_trace.json", "step_times_per_rank.json"} <= files(
        tmp_path / "run"
    )
    assert [
        len(each) for each in json.loads((tmp_path / "run/step_times_per_rank.json").read_text()).values()
    ] == [5, 5]
    (result,) = evaluate(open_run(tmp_path / "run"), ["coll_call_num"])
    assert result.value == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_scripts_are_sound(script):
    """shellcheck looks at them with those of workloads."""
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_programs_that_cannot_run_here_are_python():
    for program in GUIDE.glob("*/*.py"):
        ast.parse(program.read_text())


def test_under_nsys_torchtitan_is_asked_not_to_profile_itself(tmp_path):
    (tmp_path / "c.toml").write_text("")
    words = asked(GUIDE / "torchtitan/run.sh", tmp_path, "run", "c.toml", "1", CCL_BENCH_PROFILER="nsys")
    assert "--profiling.no-enable_profiling" in words
    assert "--profiling.enable_profiling" not in words


def test_every_rank_of_megatron_is_recorded(tmp_path):
    words = asked(GUIDE / "megatron/run.sh", tmp_path, "run", "4", "pretrain_gpt.py", "--seq-length", "1024")
    start = words.index("--profile-ranks")
    assert words[start + 1 : start + 5] == ["0", "1", "2", "3"]
    begins, ends = (int(words[words.index(f"--profile-step-{name}") + 1]) for name in ("start", "end"))
    assert ends - begins == 5


def test_the_configuration_of_vllm_is_json(tmp_path):
    text = (GUIDE / "vllm/serve_and_bench.sh").read_text()
    template = re.search(r"printf '(\{.*\})' ", text)[1]
    assert json.loads(template % "/a b/traces")["torch_profiler_dir"] == "/a b/traces"


def test_the_guide_names_every_file():
    guide = (GUIDE / "README.md").read_text()
    programs = [path.relative_to(GUIDE).as_posix() for path in GUIDE.glob("*/*") if path.is_file()]
    assert [name for name in programs if name not in guide] == []
