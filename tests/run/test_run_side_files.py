"""What `inspect` and `validate` say of the small files beside the traces: read, unused or damaged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from commands import invoke

if TYPE_CHECKING:
    from pathlib import Path

PEAKS = {"0": {"peak_alloc_bytes": 60, "peak_reserved_bytes": 80}}
STEPS = {"0": [0.5, 0.5], "1": [0.5, 0.6]}


@pytest.fixture
def inspected(tmp_path: Path) -> Any:
    """Write files into a run, and return what `inspect` shows of each and everything that is wrong."""

    def inspect(**files: Any) -> tuple[dict[str, str], list[dict[str, Any]]]:
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{name}.json").write_text(text)
        found = json.loads(invoke(f"ccl-bench inspect {tmp_path} --format json").stdout)
        return found["files"], found["issues"]

    return inspect


def test_of_two_files_of_a_kind_the_one_that_is_not_used_is_named(inspected: Any) -> None:
    files, issues = inspected(
        memory_stats=PEAKS, memory_snapshot=PEAKS, step_times=[0.5], step_times_per_rank=STEPS
    )
    assert files["memory_stats.json"] == "memory_stats.json"
    assert files["memory_snapshot.json"] == "not used; memory_stats.json is used instead"
    assert files["step_times.json"] == "not used; step_times_per_rank.json is used instead"
    unused = {issue["file"]: issue["severity"] for issue in issues if "is not used" in issue["message"]}
    assert unused == {"memory_snapshot.json": "note", "step_times.json": "note"}


def test_files_that_are_damaged_wholly_or_in_part_are_called_so(inspected: Any) -> None:
    files, issues = inspected(
        memory_stats='{"0": {', step_times_per_rank={"0": [0.5, -1]}, step_times=["x"], training_metrics=[]
    )
    assert files["memory_stats.json"] == "damaged, not used"
    assert files["step_times_per_rank.json"] == "read in part"
    assert files["step_times.json"] == "holds nothing usable, not used"
    errors = [issue["file"] for issue in issues if issue["severity"] == "error"]
    assert {"memory_stats.json", "step_times_per_rank.json", "step_times.json"} <= {*errors}


def test_validate_names_the_nearest_key_of_one_that_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "memory_stats.json").write_text('{"0": {"peak_reservd_bytes": 80, "peak_alloc_bytes": 60}}')
    for place in (tmp_path / "memory_stats.json", tmp_path):
        shown = invoke(f"ccl-bench validate {place}").stdout
        assert "0.peak_reservd_bytes: is not a key of this format and is ignored" in shown
        assert "did you mean peak_reserved_bytes" in shown
