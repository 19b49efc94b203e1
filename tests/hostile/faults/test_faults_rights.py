"""Files and folders that the reader has no right to: reported by name, the rest is measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import invoke, ran
from faulty import METRIC, metrics, small_run, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    folder = small_run(tmp_path / "run")
    yield folder
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o755)


_PLAIN = ("setpriv", "--bounding-set=-all")
"""What runs a program of root without the rights that root has beyond those of a user."""


@pytest.fixture(autouse=True)
def _root_can_be_plain() -> None:
    if os.geteuid() == 0 and subprocess.run([*_PLAIN, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root cannot give up its rights here: run the tests as another user")


def measured_without_rights(place: Path) -> subprocess.CompletedProcess[str]:
    """Measure a run in a process that has no more rights than its user's, also where that user is root."""
    words = ["ccl-metrics", "--trace", str(place), "--metric", METRIC, "--format", "json"]
    return ran([*words, "--no-cache", "--jobs", "1"], within=_PLAIN if os.geteuid() == 0 else ())


def answer(place: Path) -> dict[str, Any]:
    """Return the result of a run that has one."""
    done = measured_without_rights(place)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    return found


def ranks_of(found: dict[str, Any]) -> list[int]:
    return [trace["rank"] for trace in found["provenance"]["traces"]]


def closed_file(folder: Path) -> None:
    (folder / "rank1_trace.json").chmod(0)


def link_into_a_closed_folder(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir()
    shutil.move(folder / "rank1_trace.json", closed)
    (folder / "rank1_trace.json").symlink_to(closed / "rank1_trace.json")
    closed.chmod(0)


def folder_of_names_only(folder: Path) -> None:
    below = folder / "a"
    below.mkdir()
    shutil.move(folder / "rank1_trace.json", below)
    below.chmod(0o444)


@pytest.mark.parametrize("close", [closed_file, link_into_a_closed_folder, folder_of_names_only])
def test_a_rank_that_may_not_be_read_is_reported_and_the_other_is_measured(
    close: Callable[[Path], None], run: Path
) -> None:
    close(run)
    left = answer(run)
    reported = {(found["code"], Path(found["file"]).name) for found in left["findings"]}
    assert ("file-unreadable", "rank1_trace.json") in reported
    assert ranks_of(left) == [0]


def test_a_closed_folder_is_recognised_by_its_name_and_the_others_count(run: Path) -> None:
    whole = values(metrics(run, "--no-cache"))
    (run / "a").mkdir(mode=0)
    left = answer(run)
    (found,) = left["findings"]
    assert (found["code"], found["file"]) == ("file-unreadable", "a")
    assert left["value"] == whole[METRIC]


@pytest.mark.parametrize("rights", [0o000, 0o444, 0o311])
def test_a_run_that_may_not_be_entered_or_listed_is_refused(rights: int, run: Path) -> None:
    run.chmod(rights)
    done = measured_without_rights(run)
    assert done.returncode == 4
    assert f"{run}: cannot be read: Permission denied\n  fix: " in done.stderr


@pytest.mark.parametrize("place", ["/proc", "/proc/1", "/proc/self/task", "/sys/kernel"])
def test_a_view_into_the_kernel_is_refused(place: str) -> None:
    done = invoke(["ccl-metrics", "--trace", place, "--metric", METRIC])
    assert done.returncode == 4
    assert f"{place}: is a view of the operating system's kernel, not a run\n  fix: " in done.stderr
