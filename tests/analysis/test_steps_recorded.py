"""Steps of real training loops, recorded by torch on the CPU, whose number of steps is known."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from frames import derive_from
from recordings import recording

from ccl_bench.trace.formats.kineto.reader import read_kineto

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

STEPS = 4
"""Steps of each loop."""


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a trace of each loop in `training_loops.py`."""
    return recording(tmp_path_factory, "loops")


def _steps(recordings: Path, loop: str) -> pl.DataFrame:
    path = recordings / f"{loop}.json"
    with path.open("rb") as stream:
        return derive_from(read_kineto(stream, path.name), "steps")


@pytest.mark.parametrize(
    "loop",
    ["one_optimizer", "optimizer_for_each_part", "adversarial", "adversarial_of_one_class", "accumulating"],
)
def test_every_update_of_all_parameters_ends_one_step(recordings: Path, loop: str) -> None:
    found = _steps(recordings, loop)
    assert set(found["source"]) == {"optimizer range"}
    assert found.height == STEPS - 1
    assert found["start_ns"].to_list()[1:] == found["end_ns"].to_list()[:-1]


def test_iterations_around_steps_are_the_steps(recordings: Path) -> None:
    found = _steps(recordings, "nested")
    assert found["step"].to_list() == list(range(STEPS))
    assert found["end_ns"].is_sorted()


def test_steps_of_every_epoch_count(recordings: Path) -> None:
    assert _steps(recordings, "epochs")["step"].to_list() == list(range(2 * STEPS))


def test_a_loop_that_marks_nothing_is_one_span(recordings: Path) -> None:
    assert _steps(recordings, "unmarked")["source"].to_list() == ["whole trace"]


def test_an_operator_of_old_profilers_marks_a_step_as_a_range_does(recordings: Path, tmp_path: Path) -> None:
    path = recordings / "marked.json"
    old = path.read_text().replace('"cat": "user_annotation"', '"cat": "Operator"')
    found = derive_from(read_kineto(_stream(tmp_path / "old.json.gz", old), "old"), "steps")
    assert found["source"].to_list() == ["ProfilerStep"] * STEPS
    assert found.equals(_steps(recordings, "marked"))


def _stream(path: Path, text: str) -> gzip.GzipFile:
    path.write_bytes(gzip.compress(text.encode()))
    return gzip.open(path)
