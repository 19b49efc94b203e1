"""Messages of pipelines whose ranks hardly wait meet by the order of a schedule."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from ccl_bench.whatif.meetings import infer_messages
from ccl_bench.whatif.pipeline_orders import FORWARD, Schedule, stage_order

STEPS, STEP_NS = 4, 10**9


def even_pipelines(name: str, stages: int, replicas: int, microbatches: int) -> pl.DataFrame:
    """Return the calls of pipelines with equal slots and random pauses; `truth` numbers the messages."""
    random, rows = np.random.default_rng(3), []
    ahead = {FORWARD: 1}
    for step in range(STEPS):
        for replica in range(replicas):
            sent: dict[tuple[int, str, int], int] = {}
            now = [step * STEP_NS + int(random.integers(10_000))] * stages
            orders = [stage_order(Schedule(name), stages, stage, microbatches) for stage in range(stages)]
            at = [0] * stages
            while any(at[stage] < len(orders[stage]) for stage in range(stages)):
                for stage in range(stages):
                    if at[stage] == len(orders[stage]):
                        continue
                    kind, microbatch, _ = orders[stage][at[stage]]
                    way = ahead.get(kind, -1)
                    source, target = stage - way, stage + way
                    if 0 <= source < stages:
                        key = (source, kind, microbatch)
                        if key not in sent:
                            continue
                        begin = now[stage]
                        now[stage] = max(begin, sent[key]) + int(random.integers(60_000, 300_000))
                        rows.append(
                            (replica * stages + stage, step, "recv", begin, now[stage], (step, replica, *key))
                        )
                    now[stage] += int(6e6) + int(random.exponential(2e6))
                    if 0 <= target < stages:
                        key = (stage, kind, microbatch)
                        sent[key] = now[stage]
                        end = now[stage] + 1000
                        rows.append(
                            (replica * stages + stage, step, "send", now[stage], end, (step, replica, *key))
                        )
                    at[stage] += 1
    truths = {key: number for number, key in enumerate(dict.fromkeys(row[-1] for row in rows))}
    columns = ["rank", "step", "collective", "start_ns", "end_ns", "truth"]
    table = pl.DataFrame([(*row[:-1], truths[row[-1]]) for row in rows], columns, orient="row")
    return table.with_columns(launch_ns="start_ns").with_row_index("row")


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "replicas"), [(4, 2), (2, 4), (8, 1)])
def test_messages_of_even_pipelines_meet(name: str, stages: int, replicas: int) -> None:
    calls = even_pipelines(name, stages, replicas, 8)
    pairs, stage_of = infer_messages(calls)
    assert stage_of == {rank: rank % stages for rank in range(stages * replicas)}
    met = pairs.join(calls.select(pl.col("row").cast(pl.Int64), "truth"), on="row")
    assert met.height == calls.height
    assert (
        met.group_by("meeting")
        .agg(pl.col("truth").n_unique(), pl.len())
        .select((pl.col("truth") == 1).all() & (pl.col("len") == 2).all())
        .item()
    )
