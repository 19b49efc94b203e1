"""Plain data-parallel ranks over gloo, recorded here, of which one is delayed on purpose in a known way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cross_runs import measured
from gloo_ddp import DELAY_S, STEPS

RANKS = 3
_SCRIPT = Path(__file__).with_name("gloo_ddp.py")


Recorded = tuple[Path, int, str]
"""A run, its slow rank, and what kind of cause its delay is."""

KINDS = {"sleep": (0, "host"), "compute": (1, "compute")}


@pytest.fixture(scope="module", params=KINDS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a run recorded now."""
    kind = request.param
    slow, cause = KINDS[kind]
    folder = tmp_path_factory.mktemp(kind)
    command = [sys.executable, str(_SCRIPT), str(folder), str(RANKS), str(slow), kind]
    subprocess.run(command, check=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"})
    (folder / "store").unlink(missing_ok=True)
    return folder, slow, cause


def plain_waits(folder: Path) -> dict[int, float]:
    """Return rank -> s waited in all-reduces of the steps: each beyond the shortest of the same number."""
    lengths: dict[int, list[float]] = {}
    for rank in range(RANKS):
        events = json.loads((folder / f"rank{rank}_trace.json").read_text())["traceEvents"]
        calls = [event for event in events if event.get("name") == "gloo:all_reduce"]
        lengths[rank] = [event["dur"] / 1e6 for event in sorted(calls, key=lambda event: event["ts"])]
    assert {len(row) for row in lengths.values()} == {STEPS}
    shortest = [min(row) for row in zip(*lengths.values(), strict=True)]
    return {rank: sum(a - b for a, b in zip(row, shortest, strict=True)) for rank, row in lengths.items()}


def test_the_rank_that_was_delayed_is_late_and_the_cause_is_the_delay(recorded: Recorded):
    folder, slow, cause = recorded
    waits = plain_waits(folder)
    found = measured(folder, "straggler")
    assert min(waits, key=lambda rank: waits[rank]) == slow
    assert (found.details["slowest_rank"], found.details["late_ranks"]) == (str(slow), [str(slow)])
    told = {int(rank): wait * STEPS for rank, wait in found.details["wait_s_per_step"].items()}
    assert told == pytest.approx(waits, abs=1e-6)
    assert found.details["cause"]["kind"] == cause
    assert found.details["cause"]["excess_s"][cause] == pytest.approx(DELAY_S, rel=0.5)
