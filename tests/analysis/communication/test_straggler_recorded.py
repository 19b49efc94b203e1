"""Plain data-parallel ranks over gloo, recorded here, of which one is delayed on purpose in a known way."""

import json
from pathlib import Path

import pytest
from cross_runs import measured
from gloo_ddp import DELAY_S, DELAYED, RANKS, STEPS
from recordings import recording

CAUSES = {"sleep": "host", "compute": "compute"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each kind of delay, recorded now."""
    return recording(tmp_path_factory, "delayed ranks")


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


@pytest.mark.parametrize("kind", CAUSES)
def test_the_rank_that_was_delayed_is_late_and_the_cause_is_the_delay(recorded: Path, kind: str):
    folder, slow, cause = recorded / kind, DELAYED[kind], CAUSES[kind]
    waits = plain_waits(folder)
    found = measured(folder, "straggler")
    assert min(waits, key=lambda rank: waits[rank]) == slow
    assert (found.details["slowest_rank"], found.details["late_ranks"]) == (str(slow), [str(slow)])
    reported = {int(rank): wait * STEPS for rank, wait in found.details["wait_s_per_step"].items()}
    assert reported == pytest.approx(waits, abs=1e-6)
    assert found.details["cause"]["kind"] == cause
    assert found.details["cause"]["excess_s"][cause] > DELAY_S / 2  # a busy machine only adds to it
