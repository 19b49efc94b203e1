"""A recording of real ranks that several tests look at; it is made once, also where tests run in many."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "profiled_ranks.py"

ATTEMPTS = 2
"""On a busy machine torch 2.13 sometimes aborts when everything is done, and its threads are being ended."""

Recorded = dict[int, list[Path]]
"""Rank -> the files that it wrote, in order of time."""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return what four ranks wrote through `tensorboard_trace_handler` in three windows."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: make test")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "profiled ranks"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for attempt in range(ATTEMPTS):
            if len([*folder.rglob("*.json")]) < 12:
                _record(folder / str(attempt))
    last = max(path.parent for path in folder.rglob("*.json"))
    found: Recorded = defaultdict(list)
    for path in sorted(last.glob("*.json"), key=lambda path: int(path.name.split(".")[-4])):
        found[json.loads(path.read_text())["distributedInfo"]["rank"]].append(path)
    assert {rank: len(files) for rank, files in found.items()} == dict.fromkeys(range(4), 3)
    return found


def _record(folder: Path) -> None:
    launcher = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=4"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    command = [*launcher, str(PROGRAM), str(folder), "3"]
    subprocess.run(
        command, env={**clean, "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=240, check=False
    )
