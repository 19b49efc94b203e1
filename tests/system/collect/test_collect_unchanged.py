"""Programs that nobody changed, recorded from outside: their steps are those that they count themselves."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from collected import ENVIRONMENT, HERE, collect, files, python, torchrun
from commands import invoke
from launchers import LOADED, LOADED_FOR
from shared import made_once

from ccl_bench.collect import layout
from ccl_bench.collect.injection import deaf_python, startup_variables
from ccl_bench.collect.injection.steps import Beat, StepCounter
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

PLAIN, STEPS, RECORDED = HERE / "plain_loop.py", 12, (7, 8, 9)
TIMED = (3, 4)
"""Of the 7 steps before the recorded ones 3 are skipped, 2 are timed, and 2 warm the profiler up."""


def _json(path):
    return json.loads(path.read_text())


def _value(run, metric):
    (result,) = evaluate(open_run(run), [metric], jobs=1)
    return result.value


@pytest.fixture(scope="session")
def unchanged(once):
    """Two ranks of a loop that knows nothing of ccl-bench; only the second is profiled."""

    def make(folder):
        wishes = ("--output", folder / "run", "--steps", "7-9", "--ranks", "1")
        return collect(folder, *wishes, "--", *torchrun(PLAIN, folder / "own", STEPS))

    return once("unchanged", make)


def test_an_unchanged_loop_of_two_ranks_is_recorded_with_the_files_of_any_recording(unchanged):
    assert unchanged.ended.returncode == 0, unchanged.ended.stderr
    assert files(unchanged.run) == {
        "environment.json",
        "execution_trace/iteration_11/rank1_et.json",
        "execution_trace/rank1_et.json",
        "kineto_trace_1.json",
        "profile_trace/iteration_10/rank1_trace.json",
        "profile_trace/rank1_trace.json",
        "report.html",
        "run_metadata.json",
        "step_times_per_rank.json",
        "torch_et_1.json",
        "workload_card.yaml",
    }
    assert "optimizer.step() ends one" in unchanged.ended.stdout
    recording = _json(unchanged.run / "run_metadata.json")["recording"]
    assert recording["step_end"] == "optimizer.step()"
    assert (recording["remarks"], recording["ranks"], recording["steps"]) == ([], 2, None)


def test_a_step_of_an_unchanged_loop_is_what_the_loop_counts(unchanged):
    own = _json(unchanged.folder / "own.1")
    assert _value(unchanged.run, "coll_call_num") == own["calls"] / STEPS
    trace = _json(unchanged.run / "profile_trace/iteration_10/rank1_trace.json")["traceEvents"]
    steps = [event["name"] for event in trace if str(event.get("name")).startswith("ProfilerStep#")]
    assert sorted(steps) == [f"ProfilerStep#{step}" for step in RECORDED]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_times_its_steps_whether_it_is_profiled_or_not(unchanged, rank):
    recorded = _json(unchanged.run / "step_times_per_rank.json")[str(rank)]
    own = _json(unchanged.folder / f"own.{rank}")
    assert [*map(int, recorded)] == [*TIMED]
    # A step reaches from one moment to the next in which the optimizers have stepped.
    for step in TIMED:
        least = own["before"][step] - own["after"][step - 1]
        most = own["after"][step] - own["before"][step - 1]
        assert least < recorded[str(step)] < most


FOLLOWED = [
    "closure",
    "compiled",
    "critic",
    "forks",
    "groups",
    "hugging_face",
    "lightning",
    "newcomer",
    "scaler",
    "wrapped",
]
"""Loops of `watched_loops.py` that are recorded to the end."""


@pytest.fixture(scope="session")
def loops(tmp_path_factory, torch_installed):
    """Return the folder in which each of the loops has its run directory."""

    def make(folder):
        variables = {
            **os.environ,
            **startup_variables(os.environ),
            **LOADED_FOR,
            "OMP_NUM_THREADS": "1",
            "CCL_BENCH_OUTPUT": str(folder / "none"),
            "CCL_BENCH_STEPS": "4-5",
        }
        program = [*LOADED, HERE / "watched_loops.py", folder]
        subprocess.run(program, env=variables, check=True, timeout=600)

    return made_once(tmp_path_factory, "loops", make)[0]


def _own_ranges(folder):
    """Return the step of the recording in which each range of the loop's own numbers begins."""
    (path,) = folder.glob("profile_trace/*/rank0_trace.json")
    events = [e for e in _json(path)["traceEvents"] if e.get("cat") == "user_annotation"]
    steps = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events if "ProfilerStep" in e["name"]}
    own = [(e["ts"], e["name"]) for e in events if e["name"].startswith("own ")]
    return steps, {
        (step, name) for at, name in own for step, (start, end) in steps.items() if start <= at < end
    }


@pytest.mark.parametrize("name", FOLLOWED)
def test_steps_begin_and_end_where_those_of_the_program_do(loops, name):
    steps, own = _own_ranges(loops / name)
    assert set(steps) == {"ProfilerStep#4", "ProfilerStep#5"}
    assert own == {("ProfilerStep#4", "own 4"), ("ProfilerStep#5", "own 5")}


def test_no_loop_ends_otherwise_than_it_would_without_ccl_bench(loops):
    failed = {"fails": 1, "leaves": 7}
    assert _json(loops / "statuses.json") == {
        path.stem: failed.get(path.stem, 0) for path in loops.glob("*.txt")
    }
    assert "RuntimeError: the data ran out" in (loops / "fails.txt").read_text()


def test_an_optimizer_that_comes_late_is_remarked(loops):
    (remark,) = _json(loops / "newcomer/ranks/rank0.json")["recording"]["remarks"]
    assert remark.startswith(
        "after step 4, while the profiler ran, another optimizer stepped for the first time"
    )


def test_a_program_with_a_profiler_of_its_own_keeps_it(loops):
    assert [path.name for path in (loops / "own_profiler").rglob("*.json")] == ["own_trace.json"]
    assert "ccl-bench does not record" in (loops / "own_profiler.txt").read_text()
    assert _json(loops / "own_profiler/own_trace.json")["traceEvents"]


def test_what_was_recorded_before_the_programs_profiler_starts_is_kept(loops):
    steps, own = _own_ranges(loops / "late_profiler")
    assert set(steps) == {"ProfilerStep#4", "unfinished ProfilerStep"}
    assert own == {("ProfilerStep#4", "own 4")}
    assert _json(loops / "late_profiler/own_trace.json")["traceEvents"]


def test_a_program_that_records_itself_is_left_alone(loops):
    steps, _ = _own_ranges(loops / "library")
    assert set(steps) == {"ProfilerStep#3", "ProfilerStep#4"}
    assert "stays away" not in (loops / "library.txt").read_text()


def test_a_program_that_fails_leaves_the_steps_that_it_finished(loops):
    steps, own = _own_ranges(loops / "fails")
    assert set(steps) == {"ProfilerStep#4", "unfinished ProfilerStep"}
    assert own == {("ProfilerStep#4", "own 4"), ("unfinished ProfilerStep", "own 5")}
    assert _json(loops / "fails/ranks/rank0.json")["recording"]["steps"] == 5


def test_a_loop_that_is_too_short_is_remarked(loops):
    (remark,) = _json(loops / "short/ranks/rank0.json")["recording"]["remarks"]
    assert "after 3 of 7 steps" in remark
    assert not (loops / "short/profile_trace").exists()


def test_a_program_that_leaves_at_once_leaves_its_timed_steps(loops):
    assert [*_json(loops / "leaves/ranks/rank0.json")["seconds"]["timed"]] == ["2"]


def test_a_loop_without_an_optimizer_leaves_nothing(loops):
    assert [*(loops / "inference").iterdir()] == []


def _beats(calls):
    """Return for each call what it means; `-` is a backward pass, a letter the step of an optimizer."""
    counter, found = StepCounter(), ""
    for call in calls:
        if call == "-":
            counter.backward()
        else:
            beat = counter.stepped(ord(call))
            found += {Beat.FIRST: "1", Beat.NEXT: "+", Beat.NOTHING: "."}[beat]
    return found


@pytest.mark.parametrize(
    ("calls", "beats"),
    [
        ("-a-a-a", "1++"),
        ("--a--a", "1+"),  # two microbatches
        ("-ab-ab-ab", "11.+.+"),  # of two optimizers the last ends a step
        ("-aa-aa", "1.+."),  # one call for each group of parameters
        ("aaa", "1++"),  # gradients that no backward pass made
        ("-a-a-a-b-a-a-a-b", "1++1...+"),  # the rarest ends a step
        ("-b-a-a-a-b-a-a-a-b", "11++1...+"),
    ],
)
def test_the_rarest_optimizer_ends_a_step(calls, beats):
    assert _beats(calls) == beats


def test_cleared_gradients_end_a_step_where_no_step_is_seen():
    counter, found = StepCounter(), []
    for _ in range(3):
        found.append(counter.zeroed(1))
        counter.backward()
    assert found == [Beat.NOTHING, Beat.FIRST, Beat.NEXT]
    assert counter.end == "optimizer.zero_grad()"
    # A step that is seen after all is what counts.
    assert (counter.stepped(1), counter.zeroed(1)) == (Beat.FIRST, Beat.NOTHING)
    assert counter.end == "optimizer.step()"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["python", "train.py", "-I"], ""),
        (["python", "-u", "-X", "dev", "train.py"], ""),
        (["python3", "-c", "print()", "-S"], ""),
        (["torchrun", "train.py"], ""),
        (["python", "-I", "train.py"], "ignores PYTHONPATH"),
        (["srun", "-n2", "/opt/bin/python3.12", "-uS", "-m", "train"], "runs no sitecustomize"),
        (["python", "-W", "ignore", "-E", "train.py"], "ignores PYTHONPATH"),
    ],
)
def test_a_python_that_hears_nothing_is_recognised(command, said):
    assert said in deaf_python(command)
    assert bool(said) is bool(deaf_python(command))


LOOK = """
import sys
print("torch" in sys.modules, [place for place in sys.path if "startup" in place])
import sitecustomize
print(sitecustomize.__file__, getattr(sys, "their_own", None))
"""


def _started(folder, program, path, *options, watched=True):
    """Run a program with this PYTHONPATH of its own, under the variables that `collect` sets."""
    own = {"PYTHONPATH": str(path)}
    variables = {**ENVIRONMENT, "CCL_BENCH_OUTPUT": str(folder)}
    variables |= startup_variables(own) if watched else own
    command = [sys.executable, *options, str(program)]
    ended = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True)
    return ended.stdout.splitlines(), ended.stderr


def test_a_sitecustomize_that_python_would_have_run_is_run(tmp_path):
    own = tmp_path / "site/sitecustomize.py"
    own.parent.mkdir()
    own.write_text("import sys\nsys.their_own = 'run'\n")
    (tmp_path / "look.py").write_text(LOOK)
    said, errors = _started(tmp_path, tmp_path / "look.py", own.parent)
    assert (said, errors) == (["False []", f"{own} run"], "")


def test_a_sitecustomize_beside_the_program_is_its_own_to_import(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.their_own = 'imported'\n")
    (tmp_path / "look.py").write_text(f"import this\n{LOOK}")
    said, errors = _started(tmp_path, tmp_path / "look.py", tmp_path / "nowhere")
    unwatched = _started(tmp_path, tmp_path / "look.py", tmp_path / "nowhere", watched=False)
    assert (said, errors) == unwatched
    # Debian's Python has one of its own, which every program then imports.
    if "sitecustomize" not in sys.modules:
        assert (said[-2:], errors) == (["False []", f"{tmp_path / 'sitecustomize.py'} imported"], "")


def test_a_module_torch_of_another_kind_disturbs_nothing(tmp_path):
    (tmp_path / "torch.py").write_text("name = 'not PyTorch'\n")
    (tmp_path / "main.py").write_text("import torch\nprint(torch.name)\n")
    said, errors = _started(tmp_path, tmp_path / "main.py", tmp_path)
    assert said == ["not PyTorch"]
    assert "the program is not recorded" in errors


def test_collect_states_why_a_program_is_not_recorded(tmp_path):
    ended = collect(tmp_path, "-o", "run", "--", "python3", "-I", "-c", "")
    assert ended.returncode == 4
    assert "ignores PYTHONPATH: ccl-bench cannot record its steps" in ended.stderr
    assert "a loop without one, such as inference, is not recorded from outside" in ended.stderr


TRAIN = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(25):
    model(torch.ones(4, 8)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_program_is_recorded_with_nothing_named_but_itself(tmp_path, torch_installed):
    (tmp_path / "train.py").write_text(TRAIN)
    ended = collect(tmp_path, "--", sys.executable, "train.py")
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"train-\d{8}T\d{6}-\d+", run.name)
    assert f"runs/{run.name}/report.html" in ended.stdout
    (trace,) = run.glob("profile_trace/iteration_*/rank0_trace.json")
    marks = {event["name"] for event in _json(trace)["traceEvents"] if "name" in event}
    assert {name for name in marks if name.startswith("ProfilerStep#")} == {
        f"ProfilerStep#{step}" for step in range(15, 20)
    }


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py --lr 0.1", "train"),
        ("srun -n 24 python -u 'my model/train-v2.py'", "train-v2"),
        ("torchrun --nproc-per-node 4 -m torchtitan.train --config c.toml", "torchtitan.train"),
        ("/opt/bin/pretrain", "pretrain"),
        ("../..", "run"),
    ],
)
def test_a_run_without_a_name_is_called_after_its_program(command, program):
    place = layout.default_directory(shlex.split(command))
    assert re.fullmatch(rf"runs/{re.escape(program)}-\d{{8}}T\d{{6}}-{os.getpid()}", place.as_posix())


def test_nothing_to_run_and_nothing_to_gather_into_is_refused(tmp_path):
    ended = invoke(["ccl-bench", "collect"], folder=tmp_path)
    assert ended.returncode == 2
    assert "neither --output nor a command is given" in ended.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("option", "variable"), [("--no-inject", ""), ("--force", "0")])
def test_recording_from_outside_can_be_switched_off(tmp_path, option, variable):
    show = python("import os; print('PATH is', os.environ.get('PYTHONPATH', '').count('startup'))")
    words = ("-o", "run", option, "--", *show)
    ended = collect(tmp_path, *words, **({"CCL_BENCH_INJECT": variable} if variable else {}))
    assert "PATH is 0" in ended.stdout
    assert "an optimizer" not in ended.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--steps=0-3", "step 0 cannot be recorded"),
        ("--steps=9-3", "is not a range of steps"),
        ("--ranks=0,x", "'x' is not a list of ranks"),
    ],
)
def test_steps_and_ranks_are_checked_before_anything_runs(tmp_path, option, said):
    ended = invoke(["ccl-bench", "collect", "-o", "run", option, "--", "touch", "ran"], folder=tmp_path)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert not Path(tmp_path, "ran").exists()
