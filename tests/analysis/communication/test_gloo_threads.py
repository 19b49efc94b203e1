"""Calls of gloo, of which whichever thread is free does the next: a thread is no process group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.load import load_tables
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

THREADS = {0: "ABBABA", 1: "ABABAB"}
LATE_US, APART_US, LENGTH_US = 100, 1_000, 300


def written(folder: Path, threads: dict[int, str], **job: object) -> Path:
    """Write a run of two ranks that call in the same order, on these threads; rank 1 is late each time."""
    for rank, order in threads.items():
        calls = [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": "gloo:all_reduce",
                "pid": 9,
                "tid": ord(thread),
                "ts": 10_000 + APART_US * number + LATE_US * rank,
                "dur": LENGTH_US - LATE_US * rank,
                "args": {"External id": number, "Input Dims": [[64]], "Input type": ["float"]},
            }
            for number, thread in enumerate(order, 1)
        ]
        step = {"name": "ProfilerStep#1", "ph": "X", "cat": "user_annotation", "pid": 9, "tid": 9}
        step |= {"ts": 10_000, "dur": 9_000, "args": {}}
        info = {"backend": "gloo", "rank": rank, "world_size": 2, **job}
        content = {"distributedInfo": info, "traceEvents": [step, *calls]}
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return folder


def listed(*groups: list[int]) -> dict[str, object]:
    """Return what a job says of its process groups."""
    names = [
        {"pg_name": str(number), "pg_desc": "default_pg", "pg_size": len(ranks), "ranks": ranks}
        for number, ranks in enumerate(groups)
    ]
    return {"pg_count": len(groups), "pg_config": names}


def test_calls_of_the_only_group_are_matched_in_their_order_whatever_thread_did_them(tmp_path: Path) -> None:
    run = open_run(written(tmp_path, THREADS, **listed([0, 1])))
    found = load_tables(run, ["matched", "groups"]).inputs
    [group] = found["groups"].iter_rows(named=True)
    assert (group["members"], group["known_from"]) == ([0, 1], "pg_config")
    assert group["description"] == "default_pg"
    waits = found["matched"].sort("number", "rank").group_by("number", maintain_order=True)
    lengths = {number: tuple(rows["wait_ns"]) for (number,), rows in waits}
    assert lengths == dict.fromkeys(range(1, 7), (LATE_US * 1_000, 0))


@pytest.mark.parametrize("job", [{}, listed([0, 1], [0]), listed([0, 1], [0, 1])])
def test_without_the_only_group_two_threads_are_matched_with_nothing(
    job: dict[str, object], tmp_path: Path
) -> None:
    run = open_run(written(tmp_path, THREADS, **job))
    found = load_tables(run, ["matched", "groups"]).inputs
    assert found["groups"]["ambiguous"].all()
    assert found["matched"].is_empty()
    (lag,) = evaluate(run, ["straggler_lag_16"])
    assert lag.value is None
    assert "groups-ambiguous" in {finding.code for finding in lag.findings}


def test_one_thread_on_every_rank_keeps_the_order_of_its_group(tmp_path: Path) -> None:
    run = open_run(written(tmp_path, {0: "AAAA", 1: "AAAA"}))
    found = load_tables(run, ["matched"]).inputs["matched"]
    assert found.filter(pl.col("rank") == 0)["wait_ns"].to_list() == [LATE_US * 1_000] * 4
