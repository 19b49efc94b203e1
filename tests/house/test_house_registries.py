"""What is registered is documented, well named, and found again by every name it has."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccl_bench import metrics
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.evaluate.load import stated_inputs
from ccl_bench.run import Run
from ccl_bench.schema import TABLES
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from ccl_bench.metrics import Metric

METRICS = metrics.load()
FORMATS = formats.load()
DERIVED.load()

SECTIONS = ("Formula:", "Caveats:", "Reference:")
UNITS = {
    "%",
    "FLOP/byte",
    "GB",
    "GB/s",
    "J",
    "J/token",
    "MHz",
    "USD",
    "USD/Mtoken",
    "W",
    "calls",
    "kernels",
    "nats",
    "ratio",
    "requests/s",
    "s",
    "s/byte",
    "tokens/s",
    "tokens/s/W",
    "°C",
}
OTHER_INPUTS = set(stated_inputs(Run(Path())))
"""What metrics and tables across ranks may ask for beside tables."""

DEFINED = {
    "TPOT",
    "TTFT",
    "coll_call_num",
    "coll_call_num_16",
    "comm_comp_overlap",
    "comm_comp_overlap_16",
    "decode_step_time",
    "gpu_busy",
    "gpu_idle",
    "iter_time_16",
    "iteration_wall_clock_time",
    "mfu",
    "prefill_step_time",
    "sm",
    "throughput_tokens_16",
    "throughput_tokens_sec",
    "training_quality_16",
}

every_metric = pytest.mark.parametrize("metric", list(METRICS), ids=lambda metric: metric.name)


@every_metric
def test_a_metrics_manual_has_formula_caveats_and_reference(metric: Metric) -> None:
    sections = re.findall(r"^(\w+:)$", metric.manual, flags=re.MULTILINE)
    assert tuple(sections) == SECTIONS
    for section in SECTIONS:
        body = metric.manual.split(f"{section}\n", 1)[1].split("\n\n", 1)[0]
        assert body.strip(), f"{section} of {metric.name} is empty"


@every_metric
def test_a_metric_begins_with_one_sentence_about_itself(metric: Metric) -> None:
    assert metric.summary[0].isupper()
    assert metric.summary.endswith(".")


@every_metric
def test_a_metrics_names_are_identifiers(metric: Metric) -> None:
    assert all(name.isidentifier() for name in (metric.name, *metric.aliases))


@every_metric
def test_a_metrics_unit_is_a_known_one(metric: Metric) -> None:
    assert metric.unit in UNITS


@every_metric
def test_a_metric_asks_only_for_what_exists(metric: Metric) -> None:
    known = {*TABLES, *DERIVED.names(), *OTHER_INPUTS}
    assert set(metric.needs) <= known


@every_metric
def test_a_metric_is_found_by_each_of_its_names(metric: Metric) -> None:
    assert METRICS.get(metric.name) is metric
    assert all(METRICS.get(alias) is metric for alias in metric.aliases)


@every_metric
def test_a_variant_rests_on_a_metric_of_its_own_name(metric: Metric) -> None:
    assert not metric.variant_of or METRICS.canonical(metric.variant_of) == metric.variant_of


def test_every_name_of_the_definitions_is_there() -> None:
    assert {name for name in DEFINED if name not in METRICS} == set()


def test_no_alias_is_also_a_name() -> None:
    assert set(METRICS.names()).isdisjoint(METRICS.aliases())


def test_a_name_that_is_taken_cannot_be_registered_again() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        METRICS.add("another", next(iter(METRICS)), ["coll_call_num_16"])


def test_every_table_and_column_says_what_it_holds() -> None:
    tables = [*TABLES.values(), *(derived.table for derived in DERIVED)]
    silent = [t.name for t in tables if not t.doc]
    silent += [f"{t.name}.{name}" for t in tables for name, column in t.columns.items() if not column.doc]
    assert silent == []


def test_a_derived_table_needs_only_what_exists() -> None:
    known = {*TABLES, *DERIVED.names(), *OTHER_INPUTS}
    needs = {derived.table.name: set(derived.needs) for derived in DERIVED}
    assert {name: unknown for name, needed in needs.items() if (unknown := needed - known)} == {}


def test_every_trace_format_fills_tables_that_exist() -> None:
    assert {form.name: unknown for form in FORMATS if (unknown := set(form.tables) - set(TABLES))} == {}


@pytest.mark.parametrize("form", [*FORMATS], ids=lambda form: form.name)
def test_a_format_can_be_sent_to_the_process_that_reads(form: formats.Format) -> None:
    assert pickle.loads(pickle.dumps(form)).name == form.name
