"""The shell scripts: clean, and what is missing is said with the next command."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("clusters", "perlmutter", "trace_collection", "trace_gen", "workloads")
SCRIPTS = sorted(
    path for folder in FOLDERS for pattern in ("*.sh", "*.sbatch") for path in (ROOT / folder).rglob(pattern)
)
TP = ROOT / "trace_collection" / "llama3.1-8b-torchtitan-tp-perlmutter-16"

needs_shellcheck = pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="shellcheck is not installed: make services"
)
needs_nsys = pytest.mark.skipif(not shutil.which("nsys"), reason="nsys is not installed: make services")


def _ran(*command: str | Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run a script with nothing of the configuration but what is given; None takes a variable away."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "CCL_"))
    }
    given = {"CLUSTER": "perlmutter", "SCRATCH": "/nowhere", **environment}
    return subprocess.run(
        [str(word) for word in command],
        env={name: value for name, value in (kept | given).items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_there_are_scripts_to_look_at() -> None:
    assert len(SCRIPTS) >= 3 * 7 + 9


@needs_shellcheck
def test_shellcheck_finds_nothing_in_any_script() -> None:
    done = _ran("shellcheck", "--external-sources", *SCRIPTS)
    assert done.returncode == 0, done.stdout


def test_every_script_that_is_run_can_be_executed() -> None:
    started = [path for path in SCRIPTS if path.read_text().startswith("#!") and path.suffix == ".sh"]
    assert [path.name for path in started if not os.access(path, os.X_OK)] == []


@pytest.mark.parametrize(
    ("environment", "cause", "following"),
    [
        ({"SCRATCH": None}, "SCRATCH is not set", "export SCRATCH="),
        ({"DATA": "pile"}, "DATA=pile is not c4 or synthetic", "export DATA=synthetic"),
        ({"EXECUTION_TRACE": "yes"}, "EXECUTION_TRACE=yes is not 0 or 1", "export EXECUTION_TRACE=1"),
        ({"CLUSTER": "atlantis"}, "CLUSTER=atlantis has no profile", "cp clusters/generic.sh"),
        (
            {"PROFILE_MODE": "all"},
            "PROFILE_MODE=all is not torch, nsys or both",
            "export PROFILE_MODE=torch",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(
    environment: dict[str, str], cause: str, following: str
) -> None:
    done = _ran(ROOT / "perlmutter" / "submit_all.sh", **environment)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert cause in first
    assert second.startswith(f"  next: {following}")


def test_a_name_that_is_no_workload_is_refused() -> None:
    done = _ran(ROOT / "perlmutter" / "submit_all.sh", "gpt5", ACCOUNT="m1234")
    assert done.returncode == 2
    assert "trace_collection/gpt5 has no run.sbatch" in done.stderr


def _cpu_run(folder: Path, tmp_path: Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run a workload on this machine with programs that do nothing but show what they are given."""
    programs = tmp_path / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("ccl-bench", "torchrun"):
        (programs / name).write_text(
            '#!/bin/sh\nprintf "%s\\n" "$@" "EXECUTION_TRACE=$EXECUTION_TRACE"\nexit ${STATUS:-0}\n'
        )
        (programs / name).chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"CLUSTER": "cpu", "DATA": "c4", **environment}
    return _ran(folder / "run.sh", PATH=path, SCRATCH=str(tmp_path), **given)


def _with_tokenizer(folder: Path) -> Path:
    assets = folder / "ccl-bench-assets" / "meta-llama" / "Llama-3.1-8B"
    assets.mkdir(parents=True)
    (assets / "tokenizer.json").write_text("{}")
    return assets


def test_runs_of_a_workload_lie_beside_each_other_and_its_name_leads_to_the_last(tmp_path: Path) -> None:
    _with_tokenizer(tmp_path)
    traces = tmp_path / "ccl-bench-traces"
    runs = []
    for _ in range(2):
        assert _cpu_run(TP, tmp_path).returncode == 0
        runs.append((traces / TP.name).resolve())
    assert {path.name for path in traces.iterdir()} == {TP.name, *(run.name for run in runs)}
    assert all(re.fullmatch(rf"{re.escape(TP.name)}_\d{{8}}T\d{{6}}", run.name) for run in runs)
    assert len(set(runs)) == 2


@pytest.mark.parametrize(("recorded", "shown"), [(True, 0), (False, 1)], ids=["recorded", "empty"])
def test_a_run_that_fails_takes_the_name_of_an_earlier_one_only_if_that_has_no_traces(
    tmp_path: Path, recorded: bool, shown: int
) -> None:
    _with_tokenizer(tmp_path)
    traces = tmp_path / "ccl-bench-traces"
    runs = [traces / f"{TP.name}_20260101T000000"]
    (runs[0] / "profile_trace").mkdir(parents=True)
    (traces / TP.name).symlink_to(runs[0].name)
    if recorded:
        (runs[0] / "profile_trace" / "rank0_trace.json").touch()
    assert _cpu_run(TP, tmp_path, STATUS="1").returncode == 1
    runs += [path for path in traces.glob(f"{TP.name}_*") if path not in runs]
    assert (traces / TP.name).resolve() == runs[shown]


def test_a_tokenizer_that_is_not_there_is_asked_for_by_name(tmp_path: Path) -> None:
    done = _cpu_run(TP, tmp_path)
    assert done.returncode == 4
    assert "the tokenizer of meta-llama/Llama-3.1-8B is not in" in done.stderr
    assert "  next: hf download meta-llama/Llama-3.1-8B --include 'tokenizer*' --local-dir" in done.stderr


def test_without_a_tokenizer_the_text_is_synthetic_unless_another_is_asked_for(tmp_path: Path) -> None:
    done = _cpu_run(TP, tmp_path, CLUSTER="generic", SCHEDULER="none", DATA=None, PROFILE_MODE="torch")
    assert done.returncode == 0, done.stderr
    assert "Llama-3.1-8B, so the text is synthetic; for c4: hf download meta-llama/" in done.stderr
    words = done.stdout.splitlines()
    text = tmp_path / "ccl-bench-assets" / "synthetic" / "text"
    assert words[words.index("--training.dataset_path") + 1] == str(text)
    assert (text / "data.jsonl").stat().st_size


def test_what_is_configured_reaches_the_launcher(tmp_path: Path) -> None:
    assets = _with_tokenizer(tmp_path)
    options = {"NSYS_OPTIONS": "-t nvtx --gpu-metrics-devices all", "EXECUTION_TRACE": "0"}
    done = _cpu_run(TP, tmp_path, PROFILE_MODE="torch", **options)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    run = (tmp_path / "ccl-bench-traces" / TP.name).resolve()
    assert words[:3] == ["collect", "--output", str(run)]
    assert words[words.index("--profile-mode") + 1] == "torch"
    assert "--nsys-options=-t nvtx --gpu-metrics-devices all" in words
    assert words[words.index("--model.hf_assets_path") + 1] == str(assets)
    assert words[words.index("--job.config_file") + 1] == str(TP / "train_config.toml")
    assert words[-1] == "EXECUTION_TRACE=0"


def test_kineto_execution_traces_and_nsight_systems_are_recorded_unless_less_is_asked_for(
    tmp_path: Path,
) -> None:
    _with_tokenizer(tmp_path)
    given = {"CLUSTER": "generic", "SCHEDULER": "none"}
    words = _cpu_run(TP, tmp_path, **given).stdout.splitlines()
    assert words[words.index("--profile-mode") + 1] == "both"
    assert words[-1] == "EXECUTION_TRACE=1"


def test_an_environment_that_is_missing_is_to_be_set_up(tmp_path: Path) -> None:
    done = _ran(TP / "run.sh", CLUSTER="cpu", SCRATCH=str(tmp_path), PATH="/usr/bin:/bin")
    assert done.returncode == 4
    assert "ccl-bench is not on PATH" in done.stderr
    assert done.stderr.rstrip().endswith("perlmutter/setup_env.sh")


def _program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


SETUP = ROOT / "perlmutter" / "setup_env.sh"


def test_the_environment_is_made_by_uv_for_the_cuda_of_the_cluster(tmp_path: Path) -> None:
    path = _program(tmp_path, "uv", "exit 1")
    done = _ran(SETUP, "--dry-run", PATH=path, SCRATCH="/scratch/of me")
    assert done.returncode == 0, done.stderr
    made, installed = [line for line in done.stderr.splitlines() if line.startswith("+ ")]
    assert made == f"+ {tmp_path}/uv venv --allow-existing --python \\>=3.11 /scratch/of\\ me/ccl-bench-env "
    assert installed.startswith(
        f"+ {tmp_path}/uv pip install --python /scratch/of\\ me/ccl-bench-env/bin/python "
    )
    assert f"--torch-backend=cu129 torch torchtitan==0.2.2 datasets\\<4.8 {ROOT}" in installed


def test_without_uv_the_environment_is_made_by_venv_and_brings_it(tmp_path: Path) -> None:
    (tmp_path / "bash").symlink_to(shutil.which("bash"))
    for name in ("dirname", "env", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = _ran(SETUP, "--dry-run", PATH=str(tmp_path), PYTHON=sys.executable, TORCH="torch==2.13.0")
    assert done.returncode == 0, done.stderr
    place = "/nowhere/ccl-bench-env/bin"
    made, brought, installed = [line for line in done.stderr.splitlines() if line.startswith("+ ")]
    assert made == f"+ {sys.executable} -m venv /nowhere/ccl-bench-env "
    assert brought == f"+ {place}/python -m pip install uv "
    assert installed.startswith(
        f"+ {place}/uv pip install --python {place}/python --torch-backend=cu129 torch==2.13.0 "
    )


def test_an_environment_that_cannot_be_made_leaves_no_activate_sh(tmp_path: Path) -> None:
    path = _program(tmp_path, "uv", "echo no space left >&2; exit 1")
    done = _ran(SETUP, PATH=path, SCRATCH=str(tmp_path), ACTIVATE=str(tmp_path / "activate.sh"))
    assert done.returncode == 1
    assert "no space left\nccl-bench: cannot create the environment in" in done.stderr
    assert done.stderr.rstrip().endswith("setup_env.sh")
    assert not (tmp_path / "activate.sh").exists()


def test_what_was_set_up_is_activated_before_a_run(tmp_path: Path) -> None:
    path = _program(tmp_path, "uv", "exit 0")
    python = tmp_path / "env of m+1" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for name in ("python", "ccl-bench", "torchrun"):
        _program(python.parent, name, "true")
    (python.parent / "activate").write_text(f"PATH='{python.parent}':$PATH\n")
    given = {"SCRATCH": str(tmp_path), "ACTIVATE": str(tmp_path / "activate.sh"), "CLUSTER": "cpu"}
    done = _ran(SETUP, PATH=path, ENVIRONMENT=str(tmp_path / "env of m+1"), **given)
    assert done.returncode == 0, done.stderr
    assert _ran(TP / "run.sh", PATH="/usr/bin:/bin", **given).returncode == 0


RECORDED = (
    "import time, nvtx\nfor step in range(3):\n    with nvtx.annotate('step'):\n        time.sleep(0.01)\n"
)


@needs_nsys
def test_summaries_of_a_recorded_report_are_extracted(tmp_path: Path) -> None:
    pytest.importorskip("nvtx", reason="nvtx is not installed: make test")
    run = tmp_path / "a run+1"
    run.mkdir()
    report = [
        "nsys",
        "profile",
        "-t",
        "nvtx,osrt",
        "-s",
        "none",
        "--cpuctxsw=none",
        "-o",
        str(run / "report"),
    ]
    for _ in range(3):  # on a busy machine nsys sometimes loses the agent that it has just started
        _ran(*report, "--force-overwrite=true", sys.executable, "-c", RECORDED)
        if (run / "report.nsys-rep").exists():
            break
    done = _ran(ROOT / "perlmutter" / "nsys_tables.sh", run)
    assert done.returncode == 0, done.stderr
    with (run / "nsys_tables" / "report_nvtx_sum.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["Range"].endswith("step")]
    assert [row["Instances"] for row in rows] == ["3"]
    assert (run / "nsys_tables" / "report_osrt_sum.csv").exists()


RELEASE = """
case $* in
    *--help-reports*) printf '  %s[:base] -- Summary\n' {names} ;;
    *) while [ "$1" != --report ]; do shift; done; echo "Name"; echo "$2" ;;
esac
"""
NEWER = RELEASE.replace("{names}", "cuda_gpu_kern_sum nvtx_sum osrtsum")
OLDER = RELEASE.replace("{names}", "gpukernsum nvtxsum osrtsum")


def test_summaries_are_asked_for_by_the_names_that_the_installed_release_has(tmp_path: Path) -> None:
    (tmp_path / "report.nsys-rep").touch()
    path = _program(tmp_path, "nsys", NEWER)
    done = _ran(ROOT / "perlmutter" / "nsys_tables.sh", tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    tables = {table.stem: table.read_text().split()[-1] for table in (tmp_path / "nsys_tables").glob("*.csv")}
    assert tables["report_cuda_gpu_kern_sum"] == "cuda_gpu_kern_sum"
    assert tables["report_nvtx_sum"] == "nvtx_sum"
    # The stand-in for a later release lists two by their later names, and another by its earlier one.
    assert tables["report_osrt_sum"] == "osrtsum"


@pytest.mark.parametrize(
    ("release", "asked", "expected"),
    [
        (NEWER, "--report gpu-kern-summary", "cuda_gpu_kern_sum"),
        (OLDER, "--report gpu-kern-summary", "gpukernsum"),
        (OLDER, "--report=cuda_gpu_kern_sum:base,nvtx_sum", "gpukernsum:base,nvtxsum"),
        (NEWER, "-r gpukernsum", "cuda_gpu_kern_sum"),
        (NEWER, "--report my_own", "my_own"),
    ],
)
def test_nsys_prints_a_summary_by_any_of_its_names(
    tmp_path: Path, release: str, asked: str, expected: str
) -> None:
    shown = """[ "$2" = --help-reports ] || { echo "$*"; exit; }""" + release
    path = _program(tmp_path, "nsys", shown)
    script = f"source {ROOT}/perlmutter/nsys.sh; nsys stats {asked} --format json a.nsys-rep"
    done = _ran("bash", "-euo", "pipefail", "-c", script, PATH=path)
    words = done.stdout.replace("=", " ").split()
    assert words[:2] == ["stats", "--quiet"]
    assert words[3] == expected
    assert words[4:] == ["--format", "json", "a.nsys-rep"]


def test_a_run_without_a_report_says_how_to_record_one(tmp_path: Path) -> None:
    path = _program(tmp_path, "nsys", NEWER)
    done = _ran(ROOT / "perlmutter" / "nsys_tables.sh", tmp_path, PATH=path)
    assert done.returncode == 4
    assert "next: record with PROFILE_MODE=nsys or both" in done.stderr
