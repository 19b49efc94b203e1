"""Runs to do harm to, and the commands that are given them."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from commands import invoke, ran

from ccl_bench.testing import Plan, Style, write_run

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 2
METRIC = "comm_comp_overlap"
METRICS = (METRIC, "coll_call_num", "gpu_busy", "iteration_wall_clock_time", "straggler", "total_kernel_time")
"""What tests look at that compare numbers; they rest on every table of a small run."""
NAMED = tuple(word for name in METRICS for word in ("--metric", name))
EXPECTED_ENDS = {0, 3, 4}


def small_run(folder: Path, *, compresses: bool = False) -> Path:
    """Write a run of two ranks."""
    write_run(Plan(dp_shard=RANKS, steps=3), folder, style=Style(compresses=compresses))
    return folder


def metrics(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return what `ccl-metrics` says of some metrics of a run, as JSON."""
    return invoke(
        ["ccl-metrics", "--trace", str(folder), *NAMED, "--format", "json", "--jobs", "1", *words],
        **environment,
    )


def values(done: subprocess.CompletedProcess[str]) -> dict[str, float | None]:
    """Return metric -> value of what `metrics` returned."""
    return {found["metric"]: found["value"] for found in json.loads(done.stdout)}


def reported(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Return the codes of all findings of what `metrics` returned."""
    return {finding["code"] for found in json.loads(done.stdout) for finding in found["findings"]}


def assert_reported_in_words(done: subprocess.CompletedProcess[str], *statuses: int) -> None:
    """Check that a command ended as foreseen, with a reason and a way out and without a traceback."""
    assert "Traceback" not in done.stderr
    assert done.returncode in statuses, done.stderr
    assert "\n  fix: " in done.stderr


def on_a_small_disk(place: Path, size: str, command: list[str], **environment: str) -> str:
    """Return what a command and a list of `place` after it print, where `place` is a disk of its own.

    The disk is gone when the command has ended. Skipped where the system gives no disk in memory.
    """
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no mount namespaces here: run the tests as root")
    script = 'place=$1; size=$2; shift 2; mount -t tmpfs -o "size=$size" none "$place" || exit 125; '
    script += '"$@" 2>&1; echo "status $?"; find "$place" -type f -printf "%P %s\\n"'
    done = ran(["unshare", "-m", "sh", "-c", script, "sh", str(place), size, *command], **environment)
    if done.returncode == 125:
        pytest.skip(f"no disk in memory can be mounted here: {done.stderr}")
    return done.stdout
