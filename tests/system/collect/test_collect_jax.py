"""Programs of JAX, recorded from outside and by themselves."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from collected import ENVIRONMENT, HERE, collect, files
from shared import made_once

from ccl_bench.collect.injection import startup_variables
from ccl_bench.collect.injection.jax_hooks import JaxStepCounter
from ccl_bench.collect.injection.steps import Beat
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.trace.discovery import discover_traces

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="jax is not installed: make test"
)

RANKS, STEPS = 4, 9
CALL_BYTES = 32 * 32 * 4 + 4
"""What the processes reduce in a step: the gradient, and the loss with it."""


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _values(run: Path, *metrics: str) -> dict[str, float | None]:
    return {found.metric: found.value for found in evaluate(open_run(run), metrics, jobs=1)}


def _port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _both(*arguments: object) -> list[str]:
    """Return the command that starts both processes of a training."""
    words = " ".join(map(str, arguments))
    one = f"{sys.executable} {HERE / 'jax_training.py'} %d {_port()} {STEPS} {words}"
    return ["sh", "-c", f"{one % 0} & {one % 1} && wait $!"]


def _marks(folder: Path) -> set[str]:
    """Return the steps in the profile of a loop, and the numbers that the loop itself gave them."""
    found = set()
    for trace in discover_traces(folder).traces:
        assert trace.form.in_parts is not None
        content = trace.form.in_parts.read(trace.path, trace.relative, trace.part)
        names = content.tables["annotations"]["name"].cast(str).to_list()
        found |= {name for name in names if "#step_num=" in name or name.startswith("own ")}
    return found


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two processes that know nothing of ccl-bench: their run, and what collect printed."""

    def make(folder: Path) -> str:
        ended = collect(folder, "--output", folder / "run", "--steps", "5-7", "--", *_both())
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    folder, said = made_once(tmp_path_factory, "unchanged jax", make)
    return folder / "run", said


def test_an_unchanged_program_of_two_processes_is_a_run_with_a_rank_for_each_device(
    unchanged: tuple[Path, str],
) -> None:
    run, said = unchanged
    host = socket.gethostname()
    assert files(run) == {
        "environment.json",
        f"plugins/profile/iteration_8/{host}_0.xplane.pb",
        f"plugins/profile/iteration_8/{host}_1.xplane.pb",
        "report.html",
        "run_metadata.json",
        "step_times_per_rank.json",
        "workload_card.yaml",
    }
    assert "train_step() ends one" in said
    found = discover_traces(run).traces
    assert sorted(trace.rank or 0 for trace in found) == [*range(RANKS)]
    assert {(trace.form.name, trace.world_size, trace.iteration) for trace in found} == {("xplane", RANKS, 8)}
    assert _marks(run) == {f"train#step_num={step}#" for step in (5, 6, 7)}


def test_metrics_of_an_unchanged_program_follow_from_what_it_does(unchanged: tuple[Path, str]) -> None:
    found = _values(unchanged[0], "coll_call_num", "collective_volume_allreduce")
    assert found["collective_volume_allreduce"] == pytest.approx(CALL_BYTES / 1e9)


def test_the_files_of_the_run_are_of_devices_and_name_jax(unchanged: tuple[Path, str]) -> None:
    run, _ = unchanged
    metadata, times = _json(run / "run_metadata.json"), _json(run / "step_times_per_rank.json")
    assert metadata["world_size"] == RANKS
    assert (metadata["recording"]["profiler"], metadata["recording"]["step_end"]) == ("jax", "train_step()")
    assert [*times] == ["0", "1", "2", "3"]
    assert times["0"] == times["1"] != times["2"] == times["3"]
    card = (run / "workload_card.yaml").read_text()
    for written in (
        "name: jax ",
        "compiler_tool_selection: xla ",
        "type: CPU ",
        "total_count: 4 ",
        "[xla_trace]",
    ):
        assert written in card


def test_profile_records_jax_on_all_processes_without_collect(tmp_path: Path) -> None:
    command = _both(tmp_path / "run")
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=300, capture_output=True)
    run, host = tmp_path / "run", socket.gethostname()
    assert files(run) == {
        f"plugins/profile/iteration_8/{host}_0.xplane.pb",
        f"plugins/profile/iteration_8/{host}_1.xplane.pb",
        "run_metadata.json",
        "step_times_per_rank.json",
        "training_metrics.json",
    }
    metadata = _json(run / "run_metadata.json")
    assert (metadata["world_size"], metadata["tokens_per_step"]) == (RANKS, 16)
    assert metadata["recording"]["remarks"] == []
    assert [*_json(run / "step_times_per_rank.json")["3"]] == ["1", "2", "3"]
    losses = _json(run / "training_metrics.json")["loss"]
    assert losses[0] == 16 * 32 * 32**2
    assert losses == sorted(losses, reverse=True)
    assert _marks(run) == {f"train#step_num={step}#" for step in (5, 6, 7)}


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which each of the loops has its run directory."""

    def make(folder: Path) -> None:
        variables = {
            **os.environ,
            **startup_variables(os.environ),
            "OMP_NUM_THREADS": "1",
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "CCL_BENCH_OUTPUT": str(folder / "none"),
            "CCL_BENCH_STEPS": "4-5",
        }
        program = [sys.executable, HERE / "jax_loops.py", folder]
        subprocess.run(program, env=variables, check=True, timeout=600)

    return made_once(tmp_path_factory, "jax loops", make)[0]


@pytest.mark.parametrize("name", ["plain", "stages", "compiled_before"])
def test_steps_begin_and_end_where_those_of_the_program_do(loops: Path, name: str) -> None:
    assert _marks(loops / name) == {"train#step_num=4#", "train#step_num=5#", "own 4", "own 5"}


def test_steps_that_the_program_marks_keep_its_numbers(loops: Path) -> None:
    assert _marks(loops / "marked") == {"mine#step_num=104#", "mine#step_num=105#", "own 4", "own 5"}
    recording = _json(loops / "marked/ranks/rank0.json")["recording"]
    assert recording["step_end"] == "StepTraceAnnotation('mine')"


def test_no_loop_ends_otherwise_than_it_would_without_ccl_bench(loops: Path) -> None:
    expected = {path.stem: int(path.stem == "fails") for path in loops.glob("*.txt")}
    assert _json(loops / "statuses.json") == expected
    assert "RuntimeError: the data ran out" in (loops / "fails.txt").read_text()


def test_a_program_with_a_profiler_of_its_own_keeps_it(loops: Path) -> None:
    assert {path.parts[0] for path in map(Path, files(loops / "own_profiler"))} == {"own"}
    assert "jax allows only one: ccl-bench does not record" in (loops / "own_profiler.txt").read_text()


def test_what_was_recorded_before_the_programs_profiler_starts_is_kept(loops: Path) -> None:
    assert "train#step_num=4#" in _marks(loops / "late_profiler/plugins")
    assert {"own 6", "own 7", "own 8"} <= _marks(loops / "late_profiler/own")


def test_a_program_that_fails_leaves_the_steps_that_it_finished(loops: Path) -> None:
    assert {name for name in _marks(loops / "fails") if "#" in name} == {"train#step_num=4#"}
    assert _json(loops / "fails/ranks/rank0.json")["recording"]["steps"] == 5


def _beats(calls: str, sizes: dict[str, int]) -> str:
    """Return for each call of a function what it means: its first letter."""
    counter, known = JaxStepCounter(), sorted(sizes)
    signs = {Beat.NOTHING: ".", Beat.FIRST: "f", Beat.NEXT: "n", Beat.LATE: "l"}
    return "".join(signs[counter.called(known.index(each), each, sizes[each])] for each in calls)


@pytest.mark.parametrize(
    ("calls", "beats"),
    [
        ("tttt", "fnnn"),  # t: a step of training
        ("ettett", "ffn.nn"),  # e: an evaluation, which returns less
        ("ittt", "f.fn"),  # i: what makes the parameters and more
        ("iggguggguggg", "f.fnf...n..."),  # g: gradients of a microbatch; u: the update
        ("ttltttt", "fnf..fn"),  # l: an evaluation that returns more, called once
    ],
)
def test_the_function_that_returns_most_again_and_again_ends_a_step(calls: str, beats: str) -> None:
    assert _beats(calls, {"e": 1, "g": 4, "i": 9, "l": 50, "t": 8, "u": 8}) == beats


def test_once_the_profiler_runs_another_function_is_only_remarked() -> None:
    counter = JaxStepCounter()
    assert counter.called(1, "train_step", 8) is Beat.FIRST
    counter.is_settled = True
    assert counter.called(2, "other", 9) is Beat.LATE
    assert counter.called(1, "train_step", 0) is Beat.NEXT
    assert counter.end == "train_step()"
