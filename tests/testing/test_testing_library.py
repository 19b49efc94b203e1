"""The library reads the files and comes to the same numbers as the plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import polars as pl
import pytest

from ccl_bench import card, metrics, side_files
from ccl_bench.evaluate.compute import evaluate, evaluate_metrics
from ccl_bench.evaluate.load import load_tables, needed_inputs
from ccl_bench.run import open_run
from ccl_bench.testing import (
    Expected,
    Experts,
    Host,
    Message,
    Plan,
    Straggler,
    Style,
    plans,
    values,
    write_run,
)

if TYPE_CHECKING:
    from pathlib import Path

PLANS = {
    "replicas": Plan(dp_shard=2, dp_replicate=2, prefetch=False, microbatches=2),
    "tensor": Plan(dp_shard=2, tp=2, shard_copy_ns=1_000, jitter_ns=300),
    "context": Plan(dp_shard=2, cp=2, gradient_norm=Message(1, 100)),
    "pipeline": Plan(pp=2, microbatches=4, tp=2, layers=1),
    "even pipeline": plans.even_pipeline(2, 4),
    "uneven stages": Plan(pp=2, microbatches=3, layers=(1, 2), forward_ns=(100_000, 170_000)),
    "experts": Plan(dp_shard=4, ep=2, experts=Experts(((3, 5), (7, 1)))),
    "late rank": replace(plans.late_rank(), dp_shard=4),
    "clocks": Plan(
        dp_shard=4,
        stragglers=(Straggler(2, 50_000),),
        node_clock_offsets_ns={1: 3_000_000},
        devices_per_node=2,
    ),
    "behind": Plan(dp_shard=2, tp=2, host=Host(waits_for_device=False)),
    "four dimensions": replace(plans.many_dimensions(), dp_replicate=1, cp=1),
}
STYLES = {
    "compact": Style(),
    "pretty": Style(is_pretty=True, compresses=True),
    "absolute": Style(has_absolute_times=True),
}


TABLES = ("breakdown", "bubbles", "clock_offsets", "waits")


class Written:
    """Runs of plans in styles that take turns, each written and read once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.measured = cache(self._measured)

    def of(self, plan: str) -> tuple[Expected, dict[str, pl.DataFrame]]:
        """Return what a plan comes to, and the tables of its run."""
        expected, tables, _ = self.measured(plan)
        return expected, tables

    def _measured(self, plan: str) -> tuple[Expected, dict[str, pl.DataFrame], dict[str, float | None]]:
        """Return what a plan comes to, and tables and values of metrics of its run."""
        style = [*STYLES.values()][[*PLANS].index(plan) % len(STYLES)]
        expected = write_run(PLANS[plan], self._place / plan, style=style)
        run = open_run(self._place / plan)
        names = sorted(values(expected).keys() & {*metrics.load().names()})
        loaded = load_tables(run, [*needed_inputs(run, names), *TABLES], jobs=1, use_cache=False)
        results = evaluate_metrics(run.facts, names, loaded)
        return expected, loaded.inputs, {one.metric: one.value for one in results}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("plan", PLANS)
def test_metrics_give_the_expected_values(plan: str, written: Written):
    expected, _, obtained = written.measured(plan)
    known = values(expected)
    assert {"coll_call_num", "iteration_wall_clock_time", "comm_comp_overlap", "gpu_busy"} <= set(obtained)
    assert obtained == pytest.approx({name: known[name] for name in obtained})


@pytest.mark.parametrize("plan", ["tensor", "experts", "clocks", "behind", "uneven stages"])
def test_steps_are_divided_to_the_nanosecond(plan: str, written: Written):
    expected, found = written.of(plan)
    rows = found["breakdown"].rows(named=True)
    assert len(rows) == PLANS[plan].world_size * PLANS[plan].steps
    for row in rows:
        parts = expected.parts(row["rank"], row["step"])
        columns = [name for name in row if name.endswith("_ns")]
        assert {name: row[name] for name in columns} == {name: getattr(parts, name) for name in columns}


@pytest.mark.parametrize("plan", ["tensor", "clocks", "late rank", "pipeline"])
def test_waits_are_reported_to_the_nanosecond(plan: str, written: Written):
    expected, found = written.of(plan)
    sums = found["waits"].group_by("rank", "step").agg(pl.col("wait_ns").sum())
    assert sums.height == PLANS[plan].world_size * PLANS[plan].steps
    assert all(wait == expected.wait_ns(rank, step) for rank, step, wait in sums.iter_rows())


@pytest.mark.parametrize("plan", ["even pipeline", "uneven stages"])
def test_bubbles_are_reported_to_the_nanosecond(plan: str, written: Written):
    expected, found = written.of(plan)
    rows = found["bubbles"].rows(named=True)
    assert len(rows) == PLANS[plan].world_size * PLANS[plan].steps
    assert all(row["bubble_ns"] == expected.bubble_ns(row["rank"], row["step"]) for row in rows)


def test_clocks_are_set_right(written: Written):
    expected, found = written.of("clocks")
    rows = found["clock_offsets"].rows(named=True)
    distances = {row["offset_ns"] - expected.clock_offset_ns(row["rank"]) for row in rows}
    assert (len(rows), len(distances)) == (4, 1)


@pytest.mark.parametrize("style", STYLES)
def test_each_style_reads_without_a_finding(style: str, tmp_path: Path):
    write_run(Plan(dp_shard=2), tmp_path, style=STYLES[style], filler_bytes=200_000)
    run = open_run(tmp_path)
    assert run.findings == []
    result, *_ = evaluate(run, ["gpu_busy"], jobs=1, use_cache=False)
    assert (result.status, result.findings) == ("ok", [])


def test_the_card_has_no_mistake(tmp_path: Path):
    write_run(plans.many_dimensions(), tmp_path)
    assert card.read_card(tmp_path / "workload_card.yaml").issues == []
    assert side_files.read_metadata(tmp_path / "run_metadata.json").issues == []


def test_the_card_says_what_the_plan_says(tmp_path: Path):
    plan = plans.many_dimensions()
    write_run(plan, tmp_path)
    facts = open_run(tmp_path).facts
    for name in ("world_size", "dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "microbatches", "seq_len"):
        assert facts.needed(name).value == getattr(plan, name)
    assert facts.needed("pp_schedule").value == "1F1B"


def test_a_missing_rank_is_reported(tmp_path: Path):
    write_run(Plan(dp_shard=4, missing_ranks=frozenset({1})), tmp_path)
    assert [finding.code for finding in open_run(tmp_path).findings] == ["ranks-missing"]
