"""What recording costs, read from torchtitan's own log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccl_bench.collect.describe.torchtitan import logged_overhead
from ccl_bench.side_files.torchtitan import Profiling

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = Profiling.model_validate(
    {"enable_profiling": True, "profile_freq": 20, "profiler_warmup": 5, "profiler_active": 5}
)
COLOURED = (
    "[default{rank}]:[titan] 2026-01-01 - root - INFO - "
    "\x1b[31mstep: {step:2}  \x1b[32mloss:  8.1  \x1b[34mtps: {tps:,}  tflops: 0.1\n"
)


def _log(folder: Path, *speeds: tuple[int, int, int]) -> Path:
    """Write lines of (rank, step, tokens per second)."""
    path = folder / "torch.log"
    path.write_text("".join(COLOURED.format(rank=rank, step=step, tps=tps) for rank, step, tps in speeds))
    return path


def test_recorded_steps_are_held_against_those_before_the_profiler_began(tmp_path: Path) -> None:
    speeds = {1: 10, 5: 900, 10: 2000, 15: 1500, 20: 1000}
    log = _log(tmp_path, *((0, step, tps) for step, tps in speeds.items()))
    # Steps 6 to 10 take 1/2000 s a token, steps 16 to 20 take 1/1000 s: twice as long.
    # Up to step 5 training settles, and in steps 11 to 15 the profiler warms up.
    assert logged_overhead(log, WINDOW) == {"active": pytest.approx(1.0)}


def test_ranks_and_windows_are_averaged_by_time(tmp_path: Path) -> None:
    first = [
        (rank, step, tps) for step, tps in {1: 10, 5: 9, 10: 1000, 15: 9, 20: 800}.items() for rank in (0, 1)
    ]
    # In the steps after a trace was written there is the writing, so 21 to 25 do not count; 26 to 30 do.
    second = [(0, 25, 5), (0, 30, 500), (0, 35, 9), (0, 40, 400)]
    # Before: (1/1000 + 1/1000 + 1/500) / 3 = 4/3 ms a token; recorded: (1/800 + 1/800 + 1/400) / 3 = 5/3 ms.
    assert logged_overhead(_log(tmp_path, *first, *second), WINDOW) == {"active": pytest.approx(5 / 4 - 1)}


def test_lines_that_cover_other_steps_too_show_nothing(tmp_path: Path) -> None:
    log = _log(tmp_path, (0, 1, 10), (0, 10, 2000), (0, 20, 1000))
    # Steps 11 to 20 are half warm-up.
    assert logged_overhead(log, WINDOW) == {}


def test_without_a_log_or_a_profiler_there_is_nothing_to_show(tmp_path: Path) -> None:
    assert logged_overhead(tmp_path / "torch.log", WINDOW) == {}
    log = _log(tmp_path, (0, 1, 10), (0, 5, 900), (0, 10, 2000), (0, 15, 1500), (0, 20, 1000))
    assert logged_overhead(log, Profiling.model_validate({"enable_profiling": False})) == {}
