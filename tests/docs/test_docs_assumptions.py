"""What metrics and diagnoses assume: each has assumptions, and every guard is a finding of the manual."""

import re

import pytest
from commands import ROOT, invoke

from ccl_bench import diagnosis, metrics
from ccl_bench.analysis.derived import DERIVED, tables_behind
from ccl_bench.analysis.execution.dependencies import JUST_BEFORE_NS
from ccl_bench.analysis.execution.idle import PAUSE_NS
from ccl_bench.catalog.assumptions import assumed_in, assumptions
from ccl_bench.diagnosis.communication import MOST_RANKS, MOST_TOGETHER
from ccl_bench.diagnosis.diagnose import REPLAYED, inputs_behind
from ccl_bench.diagnosis.gains import WORTH, WORTH_ALONE
from ccl_bench.diagnosis.hosts import IRREGULAR
from ccl_bench.schema import TABLES
from ccl_bench.whatif.answer import MOST_UNEXPLAINED

MANUAL = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
SEVERITIES = dict(re.findall(r"^\| `([a-z-]+)` \| (note|warning|error) \|", MANUAL, re.MULTILINE))
WATCHES_NOTHING = {
    "trace-missing",
    "other-profiler",
    "memory-ran-out",
    "steps-left-out",
    "diagnosis-failed",
    "table-failed",
}
"""Warnings and errors that put no number in doubt: none is left, the job suffered it, or it is of none."""

GIVEN = {
    "facts", "communication_library", "device_samples", "memory_stats", "moe_assignments", "nccl_tests",
    "training_metrics",
}  # fmt: skip
"""Inputs that no trace holds."""

DERIVED.load()
METRICS = list(metrics.load())
RULES = list(diagnosis.load())
NAMES_OF_RULES = {rule.name for rule in RULES}

IN_WORDS = {3: "three", 8: "eight"}

LIMITS = {
    "graph": (f"{JUST_BEFORE_NS // 1_000} µs", f"{100 * MOST_UNEXPLAINED:g} %"),
    "gains": (f"{100 * WORTH:g} %", f"{100 * WORTH_ALONE:g} %"),
    "hosts": (f"{PAUSE_NS // 1_000_000} ms", f"{100 * IRREGULAR:g} %"),
    "slow_device": (IN_WORDS[MOST_RANKS], IN_WORDS[MOST_TOGETHER]),
}
"""Where assumptions are made → the limits of the code that their rows state."""


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_input_of_a_metric_has_an_assumption_and_a_guard(metric: metrics.Metric) -> None:
    found = assumed_in(tables_behind(metric.needs))
    assert found
    covered = {name for assumption in found for name in assumption.made_in}
    raw = {name for name in tables_behind(metric.needs) if name in TABLES or name in GIVEN}
    assert raw <= covered
    assert all(assumption.guards for assumption in found)
    assert not {*REPLAYED, *NAMES_OF_RULES} & covered


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_diagnosis_has_assumptions_of_its_own_and_of_its_inputs(rule: diagnosis.Diagnosis) -> None:
    found = assumed_in(inputs_behind(rule))
    covered = {name for assumption in found for name in assumption.made_in}
    assert rule.name in covered
    assert REPLAYED.keys() & {*rule.needs} <= covered
    assert {"identity", "steps", "kernels"} <= covered


def test_the_inputs_behind_a_diagnosis_are_those_of_its_replay() -> None:
    """Counted by hand: `hosts` needs `gains` and stalls, `gains` the graph and what hosts did."""
    of_hosts, of_graph = (
        inputs_behind(diagnosis.load().get(n)) for n in ("data_loading", "few_microbatches")
    )
    assert {"data_loading", "hosts", "stalls", "gains", "host_activity", "graph", "matched"} <= of_hosts
    assert {"few_microbatches", "graph", "facts", "operations"} <= of_graph
    assert not {"gains", "hosts", "stalls", "host_activity", "data_loading"} & of_graph


def test_every_assumption_states_what_watches_it_or_that_nothing_does() -> None:
    assert [
        each.assumes for each in assumptions() if not (each.guards or each.refused or each.unwatched)
    ] == []


@pytest.mark.parametrize("place", LIMITS)
def test_the_limits_of_the_code_are_those_of_the_rows(place: str) -> None:
    rows = [f"{each.assumes} {each.refused} {each.unwatched}" for each in assumed_in({place})]
    for limit in LIMITS[place]:
        assert any(re.search(rf"\b{limit}(?!\w)", row) for row in rows), limit


def test_every_guard_is_a_finding_of_the_manual() -> None:
    assert {code for found in assumptions() for code in found.guards} <= SEVERITIES.keys()


def test_every_warning_and_error_watches_an_assumption() -> None:
    doubts = {code for code, severity in SEVERITIES.items() if severity != "note"}
    assert doubts - WATCHES_NOTHING <= {code for found in assumptions() for code in found.guards}


def test_every_place_of_an_assumption_exists_and_no_two_share_a_name() -> None:
    tables = {*TABLES, *(found.table.name for found in DERIVED), *GIVEN}
    assert {name for found in assumptions() for name in found.made_in} <= {
        *tables,
        *REPLAYED,
        *NAMES_OF_RULES,
    }
    assert not tables & {*REPLAYED, *NAMES_OF_RULES}


def test_explain_shows_what_watches_an_assumption() -> None:
    shown = invoke("ccl-metrics --explain straggler").stdout
    assert "Assumes:" in shown
    assert "collectives-disagree" in shown


def test_explain_of_a_diagnosis_shows_its_own_assumptions_first_and_what_nothing_watches() -> None:
    shown = invoke("ccl-bench diagnose --explain slow_calls").stdout
    own, replay, table = (
        shown.index(text)
        for text in ("have a usual time", "take their recorded time", "every trace in the run")
    )
    assert shown.index("\nAssumes:\n") < own < replay < table
    assert "        not checked: calls of which more than half are slow\n" in shown
    assert "fewer than five such calls" in shown
    assert "checked by \n" not in shown
