"""Steps that ranks do not share, and traces in which nothing marks a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from small_runs import TRACE_METRICS, codes, measured, step_events, trace, write, write_ranks

from ccl_bench.evaluate.report_data import collect_report_data
from ccl_bench.report.page import report_page
from ccl_bench.report.render.text import text
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path


def _recorded(folder: Path, *numbers: tuple[int, ...], lengths: dict[int, int] | None = None) -> Path:
    """Write one trace a rank with the steps of these numbers, each at its time on a common clock."""
    for rank, steps in enumerate(numbers):
        found = trace(rank, world=len(numbers), at=rank)
        found["traceEvents"] = [
            event
            for number in steps
            for event in step_events(number, 1000 * number + rank, length=(lengths or {}).get(number, 100))
        ]
        write(folder / f"kineto_trace_{rank}.json", found)
    return folder


def test_only_steps_that_all_ranks_have_count(tmp_path: Path):
    run = _recorded(tmp_path, (3, 4, 5), (4, 5, 6), lengths={3: 900, 4: 100, 5: 200, 6: 900})
    time, calls = measured(run, "iteration_wall_clock_time", "coll_call_num")
    assert time.value == pytest.approx(150e-6)
    assert list(time.details["per_step_s"]) == list(calls.details["per_step"]) == ["4", "5"]
    assert codes(time) == codes(calls) == ["steps-differ"]
    assert time.findings[0].message == (
        "the ranks recorded different steps: 2 steps that some ranks lack are left out"
    )


def test_ranks_without_a_common_step_have_no_number_of_a_step(tmp_path: Path):
    found = measured(_recorded(tmp_path, (1, 2), (3, 4)), "iteration_wall_clock_time", *TRACE_METRICS)
    assert {result.status for result in found} == {"not_measurable"}
    assert {result.reason for result in found} == {
        "the ranks recorded different steps and have none in common"
    }
    assert found[0].fix == "record the same steps on every rank"


def test_steps_of_another_recording_window_are_not_compared(tmp_path: Path):
    _recorded(tmp_path / "iteration_10", (1, 2), (1, 2))
    _recorded(tmp_path / "iteration_20", (7,), (7,))
    (time,) = measured(tmp_path, "iteration_wall_clock_time")
    assert codes(time) == []


def _unmarked(folder: Path) -> Path:
    for path in write_ranks(folder).glob("*.json"):
        rank = int(path.stem[-1])
        found = trace(rank, at=rank)
        found["traceEvents"] = [e for e in found["traceEvents"] if e["cat"] != "user_annotation"]
        write(path, found)
    return folder


def test_a_whole_trace_that_counts_as_a_step_is_said_with_every_number_of_a_step(tmp_path: Path):
    found = measured(_unmarked(tmp_path), "iteration_wall_clock_time", *TRACE_METRICS)
    assert [codes(result) for result in found] == [["steps-not-found"]] * len(found)
    assert {result.window for result in found} == {"whole trace"}


def test_the_time_of_a_whole_trace_is_not_called_that_of_a_step(tmp_path: Path):
    shown = _report(_unmarked(tmp_path / "unmarked"))
    assert "step time" not in shown
    assert "traced span" in shown
    assert "step time" in _report(write_ranks(tmp_path / "marked"))


def _report(folder: Path) -> str:
    return text(report_page(collect_report_data(open_run(folder), use_cache=False, jobs=1))).lower()
