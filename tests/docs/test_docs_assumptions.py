"""What metrics assume: every metric has a table, and every guard that it names is a finding of the manual."""

import re

import pytest
from commands import ROOT, invoke

from ccl_bench import metrics
from ccl_bench.analysis.derived import DERIVED, tables_behind
from ccl_bench.catalog.metric_names import assumed_of, assumptions
from ccl_bench.schema import TABLES

MANUAL = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
SEVERITIES = dict(re.findall(r"^\| `([a-z-]+)` \| (note|warning|error) \|", MANUAL, re.MULTILINE))
OF_NO_METRIC = {"trace-missing", "memory-ran-out", "steps-left-out", "meetings-inferred", "diagnosis-failed"}
"""Warnings and errors that put no metric in doubt: none is left, the job suffered it, or it is of none."""

GIVEN = {"facts", "device_samples", "memory_stats", "moe_assignments", "nccl_tests", "training_metrics"}
"""Inputs that no trace holds."""

DERIVED.load()
METRICS = list(metrics.load())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_input_of_a_metric_has_an_assumption_and_a_guard(metric: metrics.Metric) -> None:
    found = assumed_of(tables_behind(metric.needs))
    assert found
    covered = {name for assumption in found for name in assumption.tables}
    raw = {name for name in tables_behind(metric.needs) if name in TABLES or name in GIVEN}
    assert raw <= covered
    assert all(assumption.guards for assumption in found)


def test_every_guard_is_a_finding_of_the_manual() -> None:
    assert {code for found in assumptions() for code in found.guards} <= SEVERITIES.keys()


def test_every_warning_and_error_watches_an_assumption() -> None:
    doubts = {code for code, severity in SEVERITIES.items() if severity != "note"}
    assert doubts - OF_NO_METRIC <= {code for found in assumptions() for code in found.guards}


def test_every_table_of_an_assumption_exists() -> None:
    named = {name for found in assumptions() for name in found.tables}
    assert named <= {*TABLES, *(found.table.name for found in DERIVED), *GIVEN}


def test_explain_shows_what_watches_an_assumption() -> None:
    shown = invoke("ccl-metrics --explain straggler").stdout
    assert "Assumes:" in shown
    assert "collectives-disagree" in shown
