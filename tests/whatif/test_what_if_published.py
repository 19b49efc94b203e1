"""The two jobs of OSDI'25's what-if study come out as their authors published them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ccl_bench.whatif import TableReplays, answer_what_if, read_operation_table

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result.what_if import WhatIf
    from ccl_bench.whatif.operation_table import OperationTable

PUBLISHED = {
    "AR": (46.3363726, 23.4847002, 1.9730451, 1.0067507),
    "ST": (2.1726968, 1.8432958, 1.1787022, 1.0192162),
}
WORST = {"AR": (0, 0), "ST": (1, 3)}
JOBS = pytest.mark.parametrize("job", list(PUBLISHED))


@cache
def table(folder: Path, job: str) -> OperationTable:
    return read_operation_table(folder / "straggler-ops" / f"trace-{job}.parquet")


@cache
def answer(folder: Path, job: str) -> WhatIf:
    return answer_what_if(TableReplays(table(folder, job)))


def published(folder: Path, name: str) -> Any:
    return json.loads((folder / "straggler-ops" / f"{name}.json").read_text())


@JOBS
def test_times_and_slowdowns(corpus: Path, job: str) -> None:
    found = answer(corpus, job)
    numbers = (found.t_original_s, found.t_ideal_s, found.slowdown, found.launch_slowdown)
    assert numbers == pytest.approx(PUBLISHED[job], rel=1e-6)
    assert found.replay_error == pytest.approx(1 / PUBLISHED[job][3] - 1, rel=1e-4)


@JOBS
@pytest.mark.parametrize(
    ("kind", "theirs"), [("rank", "dp_rank"), ("stage", "stage"), ("operation", "optype")]
)
def test_slowdown_by_one_thing(corpus: Path, job: str, kind: str, theirs: str) -> None:
    expected = published(corpus, f"result-{job}")[f"blocking_decompose_by_{theirs}"]
    assert answer(corpus, job).by[kind] == pytest.approx(expected, rel=2e-7)


@JOBS
def test_what_the_worst_workers_and_the_last_stage_explain(corpus: Path, job: str) -> None:
    found = answer(corpus, job)
    assert found.m_w is not None
    assert found.m_s is not None
    assert found.m_w.workers == [WORST[job]]
    for name, explained in (("mw", found.m_w), ("ms", found.m_s)):
        expected = published(corpus, f"{name}-{job}")
        assert (explained.rem, explained.add) == pytest.approx((expected["rem"], expected["add"]), abs=1e-6)


@JOBS
def test_every_step_with_and_without_the_time_between_operations(corpus: Path, job: str) -> None:
    expected, read = published(corpus, f"result-{job}"), table(corpus, job)
    replays = TableReplays(read)
    (without,) = replays.steps_s([read.duration])
    begun = np.where(np.isfinite(read.graph.earliest[: 2 * len(read.start) : 2, None]), read.start, -np.inf)
    earliest = np.full((read.graph.size, len(read.steps)), -np.inf)
    earliest[: 2 * len(read.start) : 2] = begun
    values = np.concatenate([read.duration, read.delay, np.zeros((1, len(read.steps)))])
    whole = replays.step_lengths(read.graph.replay(values, earliest))
    for found, name in (
        (without, "step_t_nodelay"),
        (whole, "step_t_base"),
        (read.recorded_s, "step_t_base"),
    ):
        assert found == pytest.approx(np.array([expected[name][str(step)] for step in read.steps]), rel=3e-7)


@JOBS
def test_the_critical_path_leads_to_the_straggler(corpus: Path, job: str) -> None:
    """The figures were worked out for the project by another program, on the same tables."""
    parts = answer(corpus, job).critical_path.parts
    shares = dict.fromkeys(("0/0", "1/3"), 0.0)
    for part in parts:
        shares[part.worker] = shares.get(part.worker, 0.0) + part.share
    if job == "AR":
        assert shares["0/0"] == pytest.approx(0.955, abs=5e-4)
    else:
        assert shares["1/3"] == pytest.approx(0.504, abs=5e-4)
        assert sum(share for name, share in shares.items() if name.endswith("/3")) == pytest.approx(
            0.647, abs=5e-4
        )
