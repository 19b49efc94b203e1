"""Runs under the names that profilers give by default: the time in a name is no recording window."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from profiled_ranks import STEPS

from ccl_bench import metrics
from ccl_bench.collect.layout import destination
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.inspect import inspect
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from ccl_bench.result import Result

Files = dict[int, list[Path]]


def numbers(folder: Path, *names: str) -> dict[str, Result]:
    """Return metrics of a run, all by default."""
    names = names or metrics.load().names()
    return {found.metric: found for found in evaluate(open_run(folder), names, jobs=1, use_cache=False)}


def compared(results: dict[str, Result]) -> dict[str, tuple[Any, ...]]:
    """Return what is the same whatever the files are called."""
    return {
        name: (found.status, found.value, found.reason, found.ranks, [f.code for f in found.findings])
        for name, found in results.items()
    }


def put(folder: Path, files: dict[str, Path]) -> Path:
    """Copy files under other names."""
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)
    return folder


def longest_steps_s(files: list[Path]) -> list[float]:
    """Return how long each step of one window took on its slowest rank, counted from the files themselves."""
    durations: dict[str, list[float]] = {}
    for file in files:
        for event in json.loads(file.read_text())["traceEvents"]:
            if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#"):
                durations.setdefault(event["name"], []).append(event["dur"])
    assert {len(of_ranks) for of_ranks in durations.values()} == {len(files)}
    return [max(of_ranks) / 1e6 for of_ranks in durations.values()]


def test_every_number_is_the_same_under_default_names_and_under_names_of_ranks(
    recorded: Files, tmp_path: Path
):
    first = {rank: files[0] for rank, files in recorded.items()}
    default = numbers(put(tmp_path / "default", {file.name: file for file in first.values()}))
    named = numbers(put(tmp_path / "named", {f"rank{r}_trace.json": file for r, file in first.items()}))

    assert compared(default) == compared(named)
    steps = longest_steps_s([*first.values()])
    assert len(steps) == STEPS
    assert default["iteration_wall_clock_time"].value == pytest.approx(sum(steps) / STEPS)
    slowest = [results["straggler"].details["slowest_rank"] for results in (default, named)]
    assert slowest == ["3", "3"]  # it sleeps in every step, from when the others stand where it does
    assert not any(f.code.startswith("ranks-") for found in default.values() for f in found.findings)


def test_every_number_is_the_same_in_windows_that_names_show_by_time_and_by_folder(
    recorded: Files, tmp_path: Path
):
    of_two = {rank: recorded[rank][:2] for rank in (0, 3)}
    flat = {file.name: file for files in of_two.values() for file in files}
    default = put(tmp_path / "default", flat)
    sorted_out = {
        f"iteration_{window}/rank{rank}.json": file
        for rank, files in of_two.items()
        for window, file in enumerate(files, start=1)
    }
    found, expected = numbers(default), numbers(put(tmp_path / "named", sorted_out))

    assert compared(found) == compared(expected)
    windows = [longest_steps_s([files[number] for files in of_two.values()]) for number in range(2)]
    assert found["iteration_wall_clock_time"].value == pytest.approx(sum(map(sum, windows)) / (2 * STEPS))
    assert [(t.rank, t.window) for t in inspect(open_run(default), use_cache=False).traces] == [
        (rank, window) for rank in of_two for window in (1, 2)
    ]


def test_a_rank_that_lost_one_window_lacks_that_one_and_keeps_the_others(recorded: Files, tmp_path: Path):
    kept = {file.name: file for rank, files in recorded.items() for file in files}
    del kept[recorded[2][1].name], kept[recorded[1][0].name]

    traces = open_run(put(tmp_path, kept)).traces

    held = {window: {t.rank for t in traces if t.iteration == window} for window in (1, 2, 3)}
    assert held == {1: {0, 2, 3}, 2: {0, 1, 3}, 3: {0, 1, 2, 3}}


def test_windows_of_default_names_are_gathered_into_folders_of_their_own(recorded: Files, tmp_path: Path):
    files = {file.name: file for files in recorded.values() for file in files}
    traces = open_run(put(tmp_path, files)).traces

    assert sorted(str(destination(trace)) for trace in traces) == [
        f"profile_trace/iteration_{window}/rank{rank}_trace.json" for window in (1, 2, 3) for rank in range(4)
    ]


def test_windows_of_other_ranks_that_were_recorded_at_one_time_are_one(recorded: Files, tmp_path: Path):
    first = {rank: recorded[rank][0] for rank in (0, 3)}
    apart = put(tmp_path / "apart", {f"step_{10 + r}/rank{r}.json": file for r, file in first.items()})
    together = put(tmp_path / "together", {f"step_10/rank{r}.json": file for r, file in first.items()})

    found, expected = numbers(apart), numbers(together)

    assert {n: v[:4] for n, v in compared(found).items()} == {n: v[:4] for n, v in compared(expected).items()}
    joined = {f.code for f in found["straggler"].findings}
    assert joined - {f.code for f in expected["straggler"].findings} == {"windows-joined"}


def test_windows_of_one_rank_each_that_nothing_ties_together_are_reported(recorded: Files, tmp_path: Path):
    files = {f"step_{rank}/rank{rank}.json": recorded[rank][rank % 3] for rank in range(3)}

    found = numbers(put(tmp_path, files), "iteration_wall_clock_time")["iteration_wall_clock_time"]

    assert "windows-of-other-ranks" in {f.code for f in found.findings}


def test_ranks_of_one_window_that_were_recorded_at_different_times_are_refused(
    recorded: Files, tmp_path: Path
):
    put(tmp_path, {f"rank{rank}.json": recorded[rank][0] for rank in range(3)})
    later = json.loads(recorded[3][0].read_text())
    later["baseTimeNanoseconds"] += 5 * 10**9
    (tmp_path / "rank3.json").write_text(json.dumps(later))

    found = numbers(tmp_path)

    assert {f.status for f in found.values()} <= {"not_measurable", "not_applicable"}
    assert re.fullmatch(
        r"the traces are of several runs: one recorded from [\d :.-]+ "
        r"\(rank0.json, rank1.json, rank2.json\), one recorded from [\d :.-]+ \(rank3.json\)",
        found["iteration_wall_clock_time"].reason,
    )


def test_two_starts_of_a_job_in_one_folder_are_two_runs(recorded: Files, tmp_path: Path):
    files = {written[0].name: written[0] for written in recorded.values()}
    again = {f"host_{r}.{f[1].name.split('.')[-4]}.pt.trace.json": f[1] for r, f in recorded.items()}

    run = put(tmp_path, {**files, **again})
    found = numbers(run, "iteration_wall_clock_time")["iteration_wall_clock_time"]

    assert found.status == "not_measurable"
    assert found.reason.startswith("the traces are of several runs: rank 0 was recorded by the processes ")
