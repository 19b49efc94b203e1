"""Mistakes of people who are new here: each answer names what is wrong and the way out."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
from commands import invoke

if TYPE_CHECKING:
    from pathlib import Path

OK, WRONG_USAGE, NO_VALUE, NO_INPUT = 0, 2, 3, 4

COMMAND_LINES = [
    ("ccl-bench inspekt", "unknown command 'inspekt'", "did you mean inspect"),
    ("ccl-bench timline", "unknown command 'timline'", "did you mean timeline"),
    ("ccl-bench approv", "unknown command 'approv'", "did you mean board approve"),
    ("ccl-bench qqqq", "unknown command 'qqqq'", "known: baseline, "),
    ("ccl-bench inspect", "RUN is missing", "give it: Directory, trace file or URL"),
    ("ccl-bench timeline a", "--output is missing", "give it: File to write"),
    ("ccl-bench inspect a b", "unexpected argument: b", "--help"),
    ("ccl-bench inspect a --jbs 1", "unknown option --jbs", "did you mean --jobs"),
    ("ccl-bench inspect a --json", "unknown option --json", "give --format json"),
    ("ccl-bench inspect --trace a", "unknown option --trace", "name the run without an option"),
    ("ccl-bench diagnose a -o b", "unknown option -o", "append > FILE to the command"),
    ("ccl-bench inspect a --jobs 4x", "--jobs 4x is not a whole number", "without a unit"),
    ("ccl-bench compare a b --tolerance 5%", "--tolerance 5% is not a number", "without a unit"),
    ("ccl-bench RUN", "RUN is a run, not a command", "ccl-bench inspect RUN"),
    ("ccl-bench report RUN -o no/such/r.html", "there is no folder no/such", "create it first"),
    ("ccl-bench report RUN -o notes.txt", "notes.txt already exists", "--force"),
    ("ccl-bench tables RUN -o notes.txt", "notes.txt is not a directory", "name another"),
    ("ccl-bench validate", "PATH is missing", "name the run"),
    ("ccl-bench --nothing", "unknown option --nothing", "--help"),
    ("ccl-bench completion tcsh", 'invalid value "tcsh"', "one of: bash, zsh, fish"),
    ("ccl-bench diagnose RUN --steps 90-91", "no trace contains step 90, 91", "there are 1, 2"),
    ("ccl-metrics -m coll_call_nun", "unknown metric 'coll_call_nun'", "did you mean coll_call_num"),
    ("ccl-metrics -t nowhere -m nothing", "unknown metric 'nothing'", "known: ITL"),
    ("ccl-metrics --metrik mfu", "unknown option --metrik", "did you mean --metric"),
    ("ccl-metrics RUN --metrics mfu", "unknown option --metrics", "did you mean --metric"),
    ("ccl-metrics RUN -m 'step time'", "unknown metric 'step time'", "ask for iteration_wall_clock_time"),
    ("ccl-metrics RUN -m 'GPU utilizaton'", "unknown metric", "for 'gpu utilization', ask for gpu_busy"),
    ("ccl-metrics RUN -m 'gpu utl'", "unknown metric", "for 'gpu util', ask for gpu_busy"),
    ("ccl-metrics RUN -m bandwith", "unknown metric", "ask for bandwidth_utilization_allreduce"),
    ("ccl-metrics -m mfu", "no run is given", "name a directory, trace file or URL"),
    ("ccl-metrics", "no metric is named", "--all"),
    ("ccl-metrics -m mfu -f xml", 'invalid value "xml"', "one of: value, table, json, csv"),
    ("ccl-metrics -m mfu -t", "requires an argument", "--help"),
    ("ccl-metrics -m mfu -t a -t b", "-t is given several times", "give it once"),
    ("ccl-metrics somewhere", "no metric is named", "--all"),
    ("ccl-metrics mfu RUN", "mfu is not a run", "if it is a metric: ccl-metrics RUN --metric mfu"),
    ("ccl-metrics 'some words' RUN", "some words is not a run", "ccl-metrics RUN --metric 'some words'"),
    ("ccl-metrics a b -m mfu", "2 runs are given: a, b", "ccl-bench compare a b"),
    ("ccl-metrics -m mfu -j 0", "must be 1 or more", "--help"),
    ("ccl-metrics --explain mfuu", "unknown metric 'mfuu'", "did you mean mfu"),
]

PLACES = [
    ("ccl-bench inspect RUNS", "RUNS: there is no such file or directory", "did you mean RUN?"),
    ("ccl-metrics RUN/rank00_trace.json -m mfu", "no such file or directory", "did you mean rank0_trace"),
    (
        "ccl-bench inspect RUM/iteration_10",
        "no such file",
        "check the path: there is no RUM; did you mean RUN",
    ),
    ("ccl-bench serve typo", "typo: is not a directory", "ccl-bench publish RUN --to DIR"),
    ("ccl-bench inspect empty", "empty: holds no trace of a known format", "that the profiler wrote"),
    ("ccl-metrics empty -m mfu", "empty: holds no trace of a known format", "that the profiler wrote"),
    ("ccl-bench inspect program", "it only has files such as main.py", "that the profiler wrote"),
    ("ccl-metrics notes.txt -m mfu", "notes.txt: is no trace of a known format", "that the profiler wrote"),
    ("ccl-bench inspect run.zip", "run.zip: is a zip archive", "unpack it"),
    ("ccl-bench inspect run.tar.gz", "run.tar.gz: is a tar archive", "unpack it"),
    ("ccl-bench inspect board", "is an event file of TensorBoard", "*.pt.trace.json"),
    ("ccl-bench inspect http://127.0.0.1:9/r.json", "127.0.0.1:9/r.json: cannot be reached", "fix: "),
    ("ccl-bench compare RUN typo", "typo: there is no such file", "check the path"),
]


@pytest.fixture(scope="module")
def desk(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, RUN, and what people give in place of one."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(small, folder / "RUN")
    for name in ("empty", "program", "board"):
        (folder / name).mkdir()
    (folder / "program" / "main.py").write_text("print()\n")
    (folder / "notes.txt").write_text("nothing yet\n")
    (folder / "board" / "events.out.tfevents.1").write_bytes(b"\x18\0\0\0\0\0\0\0brain.Event:2R.")
    trace = folder / "RUN" / "rank0_trace.json"
    with zipfile.ZipFile(folder / "run.zip", "w") as archive:
        archive.write(trace, trace.name)
    with tarfile.open(folder / "run.tar.gz", "w:gz") as packed:
        packed.add(trace, trace.name)
    return folder


@pytest.mark.parametrize(("command", "message", "fix"), COMMAND_LINES)
def test_a_wrong_command_line_says_what_was_meant(command: str, message: str, fix: str, desk: Path) -> None:
    _names_both(command, WRONG_USAGE, message, fix, desk)


@pytest.mark.parametrize(("command", "message", "fix"), PLACES)
def test_what_is_no_run_is_named_with_what_to_give(command: str, message: str, fix: str, desk: Path) -> None:
    _names_both(command, NO_INPUT, message, fix, desk)


def _names_both(command: str, status: int, message: str, fix: str, folder: Path) -> None:
    answer = invoke(command, folder=folder)
    assert (answer.returncode, answer.stdout) == (status, "")
    first, second = answer.stderr.splitlines()
    assert first.startswith(f"{command.split()[0]}: ")
    assert message in first
    assert second.startswith("  fix: ")
    assert fix in second


def test_a_run_is_remarked_to_be_compared_with_itself(desk: Path) -> None:
    answer = invoke("ccl-bench compare RUN RUN/ -m coll_call_num", folder=desk)
    assert answer.returncode == OK
    assert answer.stderr.startswith("ccl-bench: note: RUN is compared with itself, so nothing can differ")
    shutil.copytree(desk / "RUN", desk / "again", dirs_exist_ok=True)
    assert "itself" not in invoke("ccl-bench compare RUN again -m coll_call_num", folder=desk).stderr


def test_a_card_is_no_run_to_measure(desk: Path) -> None:
    (desk / "card.yaml").write_text("workload: {model: {phase: training}}\n")
    answer = invoke("ccl-metrics card.yaml -m coll_call_num", folder=desk)
    assert answer.returncode == NO_VALUE
    assert "the run holds no steps" in answer.stderr
    assert "fix: record the run" in answer.stderr


def test_a_packed_trace_that_was_cut_is_to_be_copied_again(sharded: Path, tmp_path: Path) -> None:
    name = "kineto_trace_0.json.gz"
    (tmp_path / name).write_bytes((sharded / name).read_bytes()[:20_000])
    answer = invoke("ccl-metrics . -m coll_call_num", folder=tmp_path)
    assert (answer.returncode, answer.stdout) == (NO_VALUE, "")
    assert f"{name}: reading stopped after" in answer.stderr
    assert "fix: copy it again" in answer.stderr


@pytest.mark.parametrize("command", ["ccl-bench inspect .", "ccl-metrics . -m mfu", "ccl-bench validate ."])
def test_a_card_that_is_no_yaml_has_its_line_and_column(command: str, small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    (tmp_path / "workload_card.yaml").write_text("version: 1\nworkload: {model: x\nhardware: y\n")
    answer = invoke(command, folder=tmp_path, COLUMNS="300")
    said = answer.stdout + answer.stderr
    assert "workload card: line 2, column 11: is not valid YAML" in said
    assert "(file-malformed)" in said
    assert "permission" not in said


def test_an_nsys_export_without_work_says_what_to_record(desk: Path) -> None:
    import sqlite3

    folder = desk / "nsys"
    folder.mkdir()
    with sqlite3.connect(folder / "report1.sqlite") as made:
        made.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        made.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
    answer = invoke("ccl-bench inspect nsys", folder=desk)
    assert answer.returncode == NO_INPUT
    assert "report1.sqlite: is an export of Nsight Systems that holds no work of a GPU" in answer.stderr
    assert "nsys profile --trace cuda,nvtx" in answer.stderr


def test_a_collective_that_a_run_lacks_needs_no_other_recording(pipelined: Path) -> None:
    for metric in ("bandwidth_utilization_allgather", "collective_volume_allgather"):
        answer = invoke(f"ccl-metrics {pipelined} -m {metric}")
        assert answer.returncode == NO_VALUE
        assert "the run has no such collective: no step holds a call of allgather" in answer.stderr
        assert "torch 2.2" not in answer.stderr


@pytest.mark.parametrize("metric", ["TTFT", "goodput", "decode_step_time"])
def test_a_run_of_an_unknown_phase_is_asked_for_it_before_a_benchmark(metric: str, desk: Path) -> None:
    shutil.copytree(desk / "RUN", desk / "phaseless", dirs_exist_ok=True)
    for card in (desk / "phaseless").glob("*card*"):
        card.unlink()
    answer = invoke(f"ccl-metrics phaseless -m {metric}", folder=desk)
    assert answer.returncode == NO_VALUE
    assert "if the run trains, write phase: training" in answer.stderr
