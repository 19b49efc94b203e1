"""A recording of real ranks that several tests look at; it is made once, also where tests run in many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from launchers import FORKING, LOADED_FOR
from shared import made_once, to_record

PROGRAM = Path(__file__).parent / "profiled_ranks.py"

ATTEMPTS = 2
"""On a busy machine torch 2.13 sometimes aborts when everything is done, and its threads are being ended."""

Recorded = dict[int, list[Path]]
"""Rank -> the files that it wrote, in order of time."""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return what four ranks wrote through `tensorboard_trace_handler` in three windows."""
    to_record("torch")
    folder, last = made_once(tmp_path_factory, "profiled ranks", _recorded)
    found: Recorded = defaultdict(list)
    for path in sorted((folder / last).glob("*.json"), key=lambda path: int(path.name.split(".")[-4])):
        found[json.loads(path.read_text())["distributedInfo"]["rank"]].append(path)
    assert {rank: len(files) for rank, files in found.items()} == dict.fromkeys(range(4), 3)
    return found


def _recorded(folder: Path) -> str:
    """Record, and return the name of the attempt that succeeded."""
    command = [str(FORKING / "torchrun"), "--standalone", "--nproc-per-node=4", str(PROGRAM)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    environment = {**clean, **LOADED_FOR, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    for attempt in map(str, range(ATTEMPTS)):
        subprocess.run(
            [*command, str(folder / attempt), "3"],
            env=environment,
            capture_output=True,
            timeout=240,
            check=False,
        )
        if len([*(folder / attempt).glob("*.json")]) == 12:
            break
    return attempt
