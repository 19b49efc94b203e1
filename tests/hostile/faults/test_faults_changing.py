"""Files that change between two looks at them: reported by name, and no number under another file's hash."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from commands import EXAMPLE, invoke, recorded_by
from faulty import EXPECTED_ENDS, small_run

from ccl_bench import storage

if TYPE_CHECKING:
    from collections.abc import Callable


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes())


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    """Replace a file at once, as those who write carefully do."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    other.replace(path)


def made_a_pipe(path: Path) -> None:
    """A pipe that nobody writes to would be waited for."""
    path.unlink()
    os.mkfifo(path)


CHANGES = (truncated, grown, removed, replaced, made_a_pipe)


def opened_while_it_changes(path: Path, change: Callable[[Path], None], look: int) -> mock._patch[Any]:
    """Return a patch after which a file changes when it was opened for the `look`-th time."""
    opens, looks = os.open, iter(range(1, 1000))

    def opening(place: Any, *how: Any, **more: Any) -> int:
        descriptor = opens(place, *how, **more)
        if isinstance(place, Path) and place == path and next(looks) == look:
            change(path)
        return descriptor

    return mock.patch.object(os, "open", opening)


def looks_at(name: str) -> tuple[int, ...]:
    """Return the looks at which a file of that name changes; at no file is looked ten times."""
    looks = {"workload_card.yaml": (1, 2), "training_metrics.json": (1, 2, 4)}
    return looks.get(name, (1, 2, 4, 7))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["rank1_trace.json.gz", "workload_card.yaml"])
def test_a_file_that_changes_at_any_look_ends_in_words_and_numbers_have_its_hash(
    tmp_path: Path, name: str, change: Callable[[Path], None]
) -> None:
    whole = small_run(tmp_path / "whole", compresses=name.endswith(".gz"))
    shutil.copy(EXAMPLE / "workload_card.yaml", whole)
    for look in looks_at(name):
        run = shutil.copytree(whole, tmp_path / f"run-{look}")
        with opened_while_it_changes(run / name, change, look):
            words = ["--metric", "coll_call_num", "--format", "json", "--jobs", "1", "--no-cache"]
            done = invoke(["ccl-metrics", "--trace", str(run), *words])
        assert done.returncode in EXPECTED_ENDS, done.stderr
        assert "Traceback" not in done.stderr
        for result in json.loads(done.stdout or "[]"):
            for trace in result["provenance"]["traces"]:
                stored = {
                    storage.sha256(each / trace["file"])
                    for each in (whole, run)
                    if (each / trace["file"]).is_file()
                }
                assert trace["sha256"] in stored


@pytest.mark.parametrize("name", ["kineto_trace_0.json.gz", "training_metrics.json", "workload_card.yaml"])
def test_a_file_that_is_removed_while_a_run_is_published_is_named(tmp_path: Path, name: str) -> None:
    run = recorded_by((0,), tmp_path / "run")
    for look in looks_at(name):
        if not (run / name).exists():
            shutil.copy(EXAMPLE / name, run)
        with opened_while_it_changes(run / name, removed, look):
            done = invoke(
                ["ccl-bench", "publish", str(run), "--to", str(tmp_path / "board"), "--traces", "include"]
            )
        assert "Traceback" not in done.stderr
        if (run / name).exists() or done.returncode == 0:
            continue
        assert done.returncode in {1, 4}
        assert "fix: " in done.stderr
