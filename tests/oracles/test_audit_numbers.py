"""The program's numbers beside a plain second implementation, on runs of the corpus."""

import os
from pathlib import Path

import pytest
from audit_numbers import TOLERANCE, Row, audited, runs
from commands import invoke

CORPUS = Path(os.environ.get("CCL_BENCH_CORPUS") or "absent")
ELSEWHERE = {"megatron-tp8-a100", "gloo-fsdp2-tp2-args", "train-pp4-dp2"}
"""Runs that resemble another; `make audit-numbers` recomputes the numbers of all."""
RUNS = {run.name: run for run in runs(CORPUS) if run.name not in ELSEWHERE} if CORPUS.is_dir() else {}

pytestmark = pytest.mark.usefixtures("shared_cache")

LEAST = 15
"""Metrics that the plain side must tell of runs with a device."""


@pytest.mark.parametrize(
    "name", RUNS or [pytest.param("none", marks=pytest.mark.skip("set CCL_BENCH_CORPUS"))]
)
def test_every_recomputed_metric_agrees(name: str) -> None:
    rows = audited(RUNS[name], invoke)
    assert rows
    assert [row for row in rows if row.verdict != "agree"] == []


@pytest.mark.parametrize("name", ["megatron-tp8", "dlrm-8rank", "nccl-args"])
def test_at_least_fifteen_metrics_of_a_device_run_are_recomputed(name: str, corpus: Path) -> None:
    assert len([value for value in RUNS[name].plain.values() if value is not None]) >= LEAST


def test_a_wrong_number_differs() -> None:
    assert Row("run", "gpu_busy", 50.0, 50.0 * (1 + 2 * TOLERANCE), "ok").verdict == "differ"


def test_a_number_that_one_side_refuses_differs() -> None:
    assert Row("run", "gpu_busy", None, 50.0, "not_measurable").verdict == "differ"
    assert Row("run", "gpu_busy", 0.0, None, "ok").verdict == "differ"
    assert Row("run", "gpu_busy", None, None, "not_measurable").verdict == "agree"
