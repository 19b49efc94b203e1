"""The snippets of the collection guide: run where they can be, else held to what can be checked."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys

import pytest
from collected import ENVIRONMENT, collect, files, torchrun
from commands import ROOT

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
    subprocess.run(["bash", "-n", str(script)], check=True)
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed: make services")
    assert subprocess.run(["shellcheck", str(script)], capture_output=True, text=True).stdout == ""


def test_programs_that_cannot_run_here_are_python():
    for program in GUIDE.glob("*/*.py"):
        ast.parse(program.read_text())


def _run(script, folder, *arguments, **variables):
    """Run a script of the guide with a `torchrun` that writes down what it was asked for, profiled or not."""
    asked, programs = folder / "asked", folder / "bin"
    programs.mkdir()
    (programs / "torchrun").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{asked}"\n')
    (programs / "nsys").write_text('#!/bin/sh\nuntil [ "$1" = torchrun ]; do shift; done\nexec "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {**ENVIRONMENT, "PATH": f"{programs}:{ENVIRONMENT['PATH']}", **variables}
    ended = subprocess.run(
        [str(script), *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert asked.exists(), ended.stderr
    return asked.read_text().splitlines()


def test_torchtitan_itself_understands_the_options(tmp_path, torch_installed):
    pytest.importorskip("torchtitan", reason="torchtitan is not installed: make test")
    (tmp_path / "my config.toml").write_text('[model]\nname = "llama3"\n[training]\nsteps = 1000\n')
    asked = _run(
        GUIDE / "torchtitan/run.sh", tmp_path, "a run", "my config.toml", "4", "--training.seq_len", "64"
    )
    options = asked[asked.index("torchtitan.train") + 1 :]
    program = (
        "import json, sys\n"
        "from torchtitan.config import ConfigManager\n"
        "found = ConfigManager().parse_args(sys.argv[1:])\n"
        "print(json.dumps([vars(found.profiling), found.training.steps, found.job.dump_folder]))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *options], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    profiling, steps, folder = json.loads(ended.stdout.splitlines()[-1])
    window = (profiling["profiler_warmup"], profiling["profiler_active"], profiling["profile_freq"])
    assert (window, steps, folder) == ((5, 5, 20), 20, "a run")
    assert profiling["enable_profiling"] is True


def test_under_nsys_torchtitan_is_asked_not_to_profile_itself(tmp_path):
    (tmp_path / "c.toml").write_text("")
    asked = _run(GUIDE / "torchtitan/run.sh", tmp_path, "run", "c.toml", "1", CCL_BENCH_PROFILER="nsys")
    assert "--profiling.no-enable_profiling" in asked
    assert "--profiling.enable_profiling" not in asked


def test_every_rank_of_megatron_is_recorded(tmp_path):
    asked = _run(GUIDE / "megatron/run.sh", tmp_path, "run", "4", "pretrain_gpt.py", "--seq-length", "1024")
    start = asked.index("--profile-ranks")
    assert asked[start + 1 : start + 5] == ["0", "1", "2", "3"]
    begins, ends = (int(asked[asked.index(f"--profile-step-{name}") + 1]) for name in ("start", "end"))
    assert ends - begins == 5


def test_the_configuration_of_vllm_is_json(tmp_path):
    text = (GUIDE / "vllm/serve_and_bench.sh").read_text()
    template = re.search(r"printf '(\{.*\})' ", text)[1]
    assert json.loads(template % "/a b/traces")["torch_profiler_dir"] == "/a b/traces"


def test_the_guide_names_every_file():
    guide = (GUIDE / "README.md").read_text()
    programs = [path.relative_to(GUIDE).as_posix() for path in GUIDE.glob("*/*") if path.is_file()]
    assert [name for name in programs if name not in guide] == []
