"""Commands that fail: what is said, what is left, and that it can be measured."""

from __future__ import annotations

import json
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

from collected import BIN, ENVIRONMENT, collect, files, loaded_python
from flight_recorder import call, dump
from training_loop_facts import TIMED

from ccl_bench.collect.collect_run import CollectRequest
from ccl_bench.collect.collect_run import collect_run as collected
from ccl_bench.collect.profiling import rank_summary
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run


def test_a_rank_that_fails_is_named_with_its_last_words(failed):
    assert failed.ended.returncode == 1
    said = failed.ended.stderr.rpartition("ccl-bench: the command")[2]
    assert "rank 1 was the first to fail, with status 1" in said
    assert "RuntimeError: the data ran out" in said


def test_what_was_recorded_before_a_failure_is_measured(failed):
    recorded = json.loads((failed.run / "step_times_per_rank.json").read_text())
    assert {rank: list(map(int, steps)) for rank, steps in recorded.items()} == {
        "0": list(TIMED),
        "1": list(TIMED),
    }
    assert "profile_trace/iteration_10/rank1_trace.json" in files(failed.run)
    (result,) = evaluate(open_run(failed.run), ["iteration_wall_clock_time"], jobs=1)
    assert result.value > 0


def test_a_step_that_was_cut_short_does_not_count(failed):
    trace = (failed.run / "profile_trace/iteration_10/rank1_trace.json").read_text()
    assert sorted(set(re.findall(r'"(?:unfinished )?ProfilerStep[^"]*"', trace))) == [
        '"ProfilerStep#7"',
        '"unfinished ProfilerStep"',
    ]


def test_parts_of_ranks_are_put_together_and_removed(failed):
    assert not (failed.run / "ranks").exists()


def test_the_signal_that_ends_a_job_is_passed_on_and_what_is_there_is_gathered(tmp_path, kineto_text):
    (tmp_path / "program.py").write_text(
        "import pathlib, time\n"
        "folder = pathlib.Path('outputs/profile_trace/iteration_10')\n"
        "folder.mkdir(parents=True)\n"
        f"(folder / 'rank0_trace.json').write_text({kineto_text[: len(kineto_text) * 2 // 3]!r})\n"
        "print('written', flush=True)\n"
        "time.sleep(1000)\n"
    )
    program = ["sh", "-c", 'exec "$PYTHON" program.py']
    command = [str(BIN / "ccl-bench"), "collect", "--output", "run", "--", *program]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "written\n"
    running.send_signal(signal.SIGTERM)
    page, said = running.communicate(timeout=300)
    assert running.returncode == 1
    assert "stopped by SIGTERM" in said
    assert "it received SIGTERM" in said
    # The file was cut in the middle, and what is whole of it counts.
    assert "profile_trace/iteration_10/rank0_trace.json" in files(tmp_path / "run")
    assert "coll_call_num" in page.split("Measurable:")[1]


def test_what_a_stopped_command_started_does_not_outlive_it(tmp_path):
    (tmp_path / "child.py").write_text(
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.setsid()\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "print('started', flush=True)\n"
        "time.sleep(1000)\n"
    )
    (tmp_path / "parent.py").write_text(
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.run([sys.executable, 'child.py'])\n"
    )
    program = (
        "from pathlib import Path\n"
        "from ccl_bench.collect.launch import process\n"
        "import os, sys\n"
        "process.GRACE_S = 0.5\n"
        "command = [sys.executable, 'parent.py']\n"
        "ended = process.run_command(command, folder=Path('.'), environment=os.environ, log=Path('log'))\n"
        "print(ended.status, ended.received.name)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "started\n"
    running.send_signal(signal.SIGTERM)
    assert running.communicate(timeout=300)[0].split() == ["-9", "SIGTERM"]
    assert not _is_running(int((tmp_path / "pid").read_text()))


def _is_running(pid):
    """Whether a process still does something; a dead one may lie about until its parent looks."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_command_that_is_not_there_is_named(tmp_path):
    ended = collect(tmp_path, "--output", "run", "--", "no-such-program")
    assert ended.returncode == 4
    assert "no-such-program: the program does not exist" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_an_option_that_is_not_known_is_no_command(tmp_path):
    ended = collect(tmp_path, "--output", "run", "--profile-mod", "nsys", "--", "true")
    assert ended.returncode == 2
    assert "there is no option --profile-mod" in ended.stderr


def test_a_command_that_leaves_no_trace_is_reported_the_way_out(tmp_path):
    ended = collect(tmp_path, "--output", "run", "--", "echo", "hello")
    assert ended.returncode == 4
    assert ended.stdout == "hello\n"
    assert "holds no trace of a known format" in ended.stderr
    # Nothing was recorded, so that the next attempt needs no --force.
    assert collect(tmp_path, "--output", "run", "--", "true").returncode == 4


def test_output_goes_on_when_its_log_cannot_be_written(tmp_path):
    (tmp_path / "run/logs").mkdir(parents=True)
    (tmp_path / "run/logs/torch.log").symlink_to("/dev/full")
    ended = collect(tmp_path, "--output", "run", "--", "echo", "hello")
    assert ended.stdout == "hello\n"
    assert "cannot write the log of the command: No space left on device" in ended.stderr


RECORDING = """
import gc, os, signal, sys
gc.disable()  # which takes as long as importing torch
import torch
from ccl_bench.collect import Schedule, profile
with profile(schedule=Schedule(skip=1, timed=2, warmup=1, active=3, observed=1)) as recording:
    for step in range(9):
        for _ in range(200):
            torch.ones(8) @ torch.ones(8)
        if step == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        recording.step(tokens=8)
"""


def test_steps_that_were_timed_before_a_process_was_killed_are_measured(tmp_path, torch_installed):
    words = ("--output", "run", "--", *loaded_python(RECORDING, 5))
    ended = collect(tmp_path, *words)
    assert ended.returncode == 1
    assert "the command ended by signal SIGKILL" in ended.stderr
    assert "most likely because the node ran out of memory" in ended.stderr
    assert "run: holds no trace: the command ended before it wrote one" in ended.stderr
    assert "iteration_wall_clock_time" in ended.stdout.split("Measurable:")[1]
    timed = json.loads((tmp_path / "run/step_times_per_rank.json").read_text())["0"]
    assert list(timed) == ["1", "2"]


def test_on_a_full_disk_what_was_recorded_is_kept_until_there_is_room(tmp_path, full_disk, torch_installed):
    run = full_disk / "run"
    ended = collect(tmp_path, "--output", run, "--", *loaded_python(RECORDING, -1))
    assert ended.returncode == 1
    assert "the trace is incomplete: its disk has 0 MB free" in ended.stderr
    assert f"{run}: the run is incomplete: No space left on device; the recorded files" in ended.stderr
    assert f"fix: free space there, then: ccl-bench collect --output {run}" in ended.stderr
    (full_disk / "filler").unlink()
    again = collect(tmp_path, "--output", run)
    assert again.returncode == 0, again.stderr
    assert "iteration_wall_clock_time" in again.stdout.split("Measurable:")[1]


def test_what_ranks_left_is_put_together_when_launcher_and_ranks_were_killed(tmp_path, kineto_text):
    for rank in (0, 1):
        timed = {"timed": {1: 0.5, 2: 0.25 + rank}}
        rank_summary.save_summary(
            tmp_path / "run", rank_summary.RankSummary(rank, 4, timed, recording={"profiler": "torch"})
        )
    window = tmp_path / "run/profile_trace/iteration_7"
    window.mkdir(parents=True)
    # Kineto gives a trace its name when it is whole.
    (window / "rank0_trace.json.tmp").write_text(kineto_text[: len(kineto_text) * 2 // 3])
    done = collected(CollectRequest(tmp_path / "run", folder=tmp_path))
    said = "\n".join(done.remarks)
    assert "2 of 4 ranks saved no step times" in said
    assert "rank0_trace.json is incomplete" in said
    # The slower rank makes the step: (0.5 + 1.25) / 2.
    (result,) = evaluate(open_run(tmp_path / "run"), ["iteration_wall_clock_time"], jobs=1)
    assert result.value == 0.875
    assert "kineto_trace_0.json" in files(tmp_path / "run")


def test_the_status_of_the_command_is_reported(tmp_path):
    ended = collect(tmp_path, "--output", "run", "--", "sh", "-c", "echo the reason >&2; exit 7")
    assert ended.returncode == 1
    assert "the command ended with status 7 after 0 s\n  | the reason\n" in ended.stderr


def test_a_job_that_hangs_leaves_its_last_calls_in_the_run(tmp_path):
    """torch's watchdog writes `<prefix><rank>` where its variables say, and then ends the process."""
    code = pickle.dumps(dump([call("all_reduce", 1)]), protocol=2)
    (tmp_path / "dump").write_bytes(code)
    watchdog = 'for rank in 0 1; do cp dump "$TORCH_FR_DUMP_TEMP_FILE$rank"; done; exit 6'
    asked = f"test $TORCH_FR_BUFFER_SIZE$TORCH_NCCL_DUMP_ON_TIMEOUT = 20001 && {watchdog}"
    ended = collect(tmp_path, "--output", "run", "--", "sh", "-c", asked)
    assert "the command ended with status 6" in ended.stderr
    found = open_run(tmp_path / "run")
    assert {trace.relative: trace.rank for trace in found.traces} == {
        "comm_lib_trace_rank_0": 0,
        "comm_lib_trace_rank_1": 1,
    }


def test_where_dumps_go_is_the_users_choice(tmp_path):
    shown = "echo $TORCH_FR_DUMP_TEMP_FILE$TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    words = ("--output", "run", "--", "sh", "-c", shown)
    ended = collect(tmp_path, *words, TORCH_NCCL_DEBUG_INFO_TEMP_FILE="/elsewhere/rank_")
    assert ended.stdout == "/elsewhere/rank_\n"
