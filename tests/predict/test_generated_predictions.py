"""Predictions from generated runs on devices come to what the plan of the other configuration takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ccl_bench.predict.prediction import Asked, predict_run
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, timeline, write_run

if TYPE_CHECKING:
    from ccl_bench.result.prediction import Prediction

REPLICATED = Plan(dp_replicate=2, pp=4, microbatches=8, layers=2, steps=3)
SHARDED = Plan(dp_shard=2, tp=2, pp=2, microbatches=4, layers=4, steps=3, jitter_ns=50_000)


def length_s(plan: Plan) -> float:
    """Return what the slowest rank takes for a step, from the end of the one before."""
    lengths, before = [], [0] * plan.world_size
    for records in timeline(plan).steps:
        ends = [max(record.host_end_ns, record.device_end_ns) for record in records]
        begins = [max(record.host_start_ns, end) for record, end in zip(records, before, strict=True)]
        lengths.append(max(end - begin for begin, end in zip(begins, ends, strict=True)))
        before = ends
    return float(np.median(lengths)) / 1e9


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    for name, plan in (("replicated", REPLICATED), ("sharded", SHARDED)):
        write_run(plan, folder / name)
    return {name: str(folder / name) for name in ("replicated", "sharded")}


def predicted(run: str, plan: Plan) -> Prediction:
    dp = plan.dp_replicate * plan.dp_shard
    asked = Asked(dp=dp, pp=plan.pp, microbatches=plan.microbatches, allow_other_batch=True)
    return predict_run(open_run(run), asked)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("replicated", {"microbatches": 4}, 0.001),
        ("replicated", {"microbatches": 16}, 0.001),
        ("replicated", {"pp": 2, "layers": 4}, 0.03),
        ("replicated", {"pp": 8, "layers": 1}, 0.03),
        ("replicated", {"dp_replicate": 4}, 0.03),
        ("sharded", {"microbatches": 8}, 0.01),
        ("sharded", {"pp": 4, "layers": 2}, 0.06),
    ],
)
def test_another_plan_takes_what_is_predicted(
    runs: dict[str, str], name: str, change: dict[str, int], error: float
) -> None:
    other = replace(REPLICATED if name == "replicated" else SHARDED, **change)
    answer = predicted(runs[name], other)
    assert answer.refused is None
    assert answer.step_s is not None
    assert answer.step_s["p50"] == pytest.approx(length_s(other), rel=error)
    assert answer.step_s["p10"] < length_s(other) < answer.step_s["p90"]


def test_equal_work_has_a_rate_of_tokens(runs: dict[str, str]) -> None:
    other = replace(REPLICATED, dp_replicate=4, microbatches=4)
    answer = predicted(runs["replicated"], other)
    assert answer.tokens_per_s_per_gpu is not None
    expected = other.tokens_per_step / length_s(other) / other.world_size
    assert answer.tokens_per_s_per_gpu["p50"] == pytest.approx(expected, rel=0.04)
    assert answer.configuration["tp"] == 1


def test_a_run_with_a_missing_rank_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("missing")
    write_run(replace(REPLICATED, steps=2, missing_ranks=frozenset({5})), folder)
    answer = predict_run(open_run(folder), Asked(microbatches=4, allow_other_batch=True))
    assert answer.step_s is None
    assert answer.refused is not None
