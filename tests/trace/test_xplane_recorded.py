"""Recorded runs of JAX: what the programs state of themselves, what XLA compiled, and what is read."""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import cache
from math import prod
from pathlib import Path

import polars as pl
import pytest
from jax_recordings import RANKS, SENDS, STATED, STEPS, jax_recording, traces
from oracles import xprof_figures

from ccl_bench.evaluate.compute import evaluate_metrics
from ccl_bench.evaluate.load import LoadedRun, load_tables, needed_inputs
from ccl_bench.run import open_run

pytestmark = pytest.mark.usefixtures("shared_cache")

_ARRAY = re.compile(r"\b(f16|f32)\[([\d,]*)\]")
SUFFIXES = {
    "all_gather": "allgather",
    "all_reduce": "allreduce",
    "all_to_all": "alltoall",
    "reduce_scatter": "reducescatter",
    "send_recv": "p2p",
}
"""Collective → how the names of metrics about it end."""

_COLLECTIVE = re.compile(
    r" = (?P<results>[^=]*) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\("
)
_DOT = re.compile(r" = f\d+\[([\d,]+)\]\S* dot\(%")


@pytest.fixture(params=STATED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recording(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jax_recording(tmp_path_factory, name)


def elements(text: str) -> int:
    """Return the elements of all arrays in a text."""
    return sum(prod(map(int, filter(None, sides.split(",")))) for _, sides in _ARRAY.findall(text))


def test_both_processes_leave_a_profile(recording: Path) -> None:
    assert len(traces(recording)) == 2
    assert len(traces(recording, ".trace.json.gz")) == 2


def test_xla_compiled_the_collectives_that_a_program_states(recording: Path, name: str) -> None:
    lines = (recording / "program.txt").read_text().splitlines()
    compiled = [(found["kind"], found["results"]) for line in lines if (found := _COLLECTIVE.search(line))]
    stated = STATED[name].calls
    per_pass = {call.instruction: call.times // STATED[name].rounds for call in stated}
    assert sorted({kind for kind, _ in compiled}) == sorted(per_pass)
    for call in stated:
        results = [result for kind, result in compiled if kind == call.instruction]
        assert len(results) == per_pass[call.instruction]
        assert {elements(result) for result in results} == {call.received}
        assert {dtype for result in results for dtype, _ in _ARRAY.findall(result)} == {call.dtype}


def test_xla_compiled_the_products_that_a_program_states(recording: Path, name: str) -> None:
    text = (recording / "program.txt").read_text()
    results = sorted(prod(map(int, sides.split(","))) for sides in _DOT.findall(text))
    assert results == sorted(rows * columns for rows, _, columns in STATED[name].products)


needs_corpus = pytest.mark.skipif(
    "CCL_BENCH_CORPUS" not in os.environ, reason="CCL_BENCH_CORPUS names no corpus"
)


METRICS = ("coll_call_num", "compute_intensity", *(f"collective_volume_{end}" for end in SUFFIXES.values()))


@cache
def loaded(run: Path) -> LoadedRun:
    """Return what is read of a recording."""
    opened = open_run(run)
    wanted = (*needed_inputs(opened, METRICS), "steps", "collectives", "products")
    return load_tables(opened, wanted, jobs=1)


def tables(run: Path) -> dict[str, pl.DataFrame]:
    """Return the tables of a recording by name."""
    return loaded(run).inputs


def by_rank(table: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Return the rows of each rank."""
    return {rank: rows for (rank,), rows in table.sort("start_ns").group_by("rank", maintain_order=True)}


def test_every_device_has_the_steps_that_the_program_ran(recording: Path, name: str) -> None:
    steps = by_rank(tables(recording)["steps"])
    assert sorted(steps) == [*range(RANKS)]
    source = "range of the format" if STATED[name].is_marked and name != "ahead" else "device range"
    for rows in steps.values():
        assert rows["step"].to_list() == [*range(STEPS)]
        assert set(rows["source"]) == {source}


def test_every_device_calls_the_collectives_that_the_program_states(recording: Path, name: str) -> None:
    steps = by_rank(tables(recording)["steps"])
    calls = by_rank(tables(recording)["collectives"])
    each = Counter({call.kind: call.times for call in STATED[name].calls})
    assert sorted(calls) == [*range(RANKS)]
    for rank, rows in calls.items():
        assert Counter(rows["name"]) == {kind: times * STEPS for kind, times in each.items()}
        assert set(steps[rank]["calls"]) == {each.total()}
        assert rows.filter(pl.col("start_ns").diff() < 0).is_empty()


@pytest.mark.parametrize("name", [name for name in STATED if name != "pipeline"])
def test_a_call_has_the_type_size_and_members_that_the_program_states(recording: Path, name: str) -> None:
    for rank, rows in by_rank(tables(recording)["collectives"]).items():
        for call in STATED[name].calls:
            found = rows.filter(pl.col("name") == call.kind)
            (members,) = [group for group in call.groups if rank in group]
            shown = found.select("dtype", "in_elements", "out_elements", "group_size").unique().rows()
            assert shown == [(call.dtype, call.sent, call.received, len(members))]
            assert {tuple(ranks) for ranks in found["group_ranks"]} == {members}


def test_a_stage_of_a_pipeline_sends_to_the_next_and_the_last_to_none(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    (call,) = STATED["pipeline"].calls
    recording = jax_recording(tmp_path_factory, "pipeline")
    for rank, rows in by_rank(tables(recording)["collectives"]).items():
        sends = call.sent if rank in [source for source, _ in SENDS] else 0
        receives = call.received if rank in [target for _, target in SENDS] else 0
        assert set(rows.select("in_elements", "out_elements").rows()) == {(sends, receives)}
        assert {tuple(ranks) for ranks in rows["group_ranks"]} == {(0, 1, 2, 3)}  # one chain


def test_every_device_computes_the_products_that_the_program_states(recording: Path, name: str) -> None:
    stated = STATED[name]
    for rows in by_rank(tables(recording)["products"]).values():
        sides = Counter(rows.select("rows", "inner", "columns").rows())
        assert set(rows["batch"]) == {1}
        turned = Counter(stated.products)
        assert sum(sides.values()) == turned.total() * stated.rounds * STEPS
        flops = sum(2 * prod(each) * count for each, count in sides.items())
        assert flops == stated.flops * STEPS


def test_metrics_of_what_moves_and_is_computed_follow_from_the_program(recording: Path, name: str) -> None:
    stated = STATED[name]
    volumes = {call.kind: f"collective_volume_{SUFFIXES[call.kind]}" for call in stated.calls}
    wanted = ["coll_call_num", "compute_intensity", *volumes.values()]
    measured = evaluate_metrics(open_run(recording).facts, wanted, loaded(recording))
    found = {one.metric: one.value for one in measured}
    assert found["coll_call_num"] == sum(call.times for call in stated.calls)
    for call in stated.calls:
        message = max(call.sent, call.received) * call.element_bytes * call.times
        if name == "pipeline":  # a message counts on both of its ranks: 3 sends and 3 receives of 4 stages
            message = message * 6 / 4
        assert found[volumes[call.kind]] == pytest.approx(message / 1e9)
    moved = sum(4 * (m * k + k * n + m * n) for m, k, n in stated.products)
    computed = sum(2 * m * k * n for m, k, n in stated.products)
    assert found["compute_intensity"] == pytest.approx(computed / moved)


@pytest.mark.parametrize(
    "name", [name for name, stated in STATED.items() if stated.is_marked and name != "ahead"]
)
def test_a_marked_step_that_is_waited_for_lasts_as_long_as_xprof_says(recording: Path, name: str) -> None:
    steps = by_rank(tables(recording)["steps"])
    for process, profile in enumerate(traces(recording)):
        expected = xprof_figures.step_seconds(profile)
        for rank in (2 * process, 2 * process + 1):
            shown = {
                step: (end - start) / 1e9
                for step, start, end in steps[rank].select("step", "start_ns", "end_ns").rows()
            }
            assert shown == pytest.approx(expected, abs=2e-9)


def test_steps_that_run_ahead_last_until_the_devices_are_done(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    recording = jax_recording(tmp_path_factory, "ahead")
    found = tables(recording)
    work = by_rank(found["products"])
    for process, profile in enumerate(traces(recording)):
        marked = sum(xprof_figures.step_seconds(profile).values())
        for rank in (2 * process, 2 * process + 1):
            steps = by_rank(found["steps"])[rank]
            assert steps["start_ns"][0] <= work[rank]["start_ns"].min()
            assert steps["end_ns"][-1] >= work[rank]["end_ns"].max()
            assert (steps["start_ns"][1:] == steps["end_ns"][:-1]).all()
            assert marked > 0


@needs_corpus
def test_a_tpus_instructions_take_cost_and_last_what_xprof_says() -> None:
    profile = Path(os.environ["CCL_BENCH_CORPUS"], "xplane/tpu-v6e-4of8/host0.xplane.pb")
    expected = xprof_figures.operations(profile)
    run = open_run(profile.parent)
    found = load_tables(run, ("hlo_operations", "devices"), jobs=1).inputs
    operations = found["hlo_operations"].with_columns(pl.col("name").cast(pl.String))
    shown = operations.group_by("name").agg(
        pl.len(),
        (pl.col("end_ns") - pl.col("start_ns")).sum(),
        pl.col("model_flops").mean(),
        pl.col("bytes").mean(),
    )
    for name, count, total_ns, flops, moved in shown.rows():
        if name not in expected:
            assert name == "barrier-cores"
            continue
        one = expected[name]
        assert count == one.count
        assert total_ns / 1e3 == pytest.approx(one.total_us, abs=0.002 * count)
        assert flops == pytest.approx(one.flops)
        assert moved == pytest.approx(one.bytes)
    assert {*expected} <= {*shown["name"]}
    peaks = xprof_figures.peaks(profile)
    devices = found["devices"].select("peak_flops_per_s", "memory_bytes_per_s").unique().rows()
    assert [pytest.approx(peaks, rel=1e-4)] == devices


@needs_corpus
def test_a_gpus_kernels_last_what_xprof_says() -> None:
    profile = Path(os.environ["CCL_BENCH_CORPUS"], "xplane/mi300-conv/tw003.xplane.pb")
    found = load_tables(open_run(profile.parent), ("kernels",), jobs=1).inputs["kernels"]
    lengths = found.group_by(pl.col("name").cast(pl.String)).agg(
        pl.len(), us=(pl.col("end_ns") - pl.col("start_ns")).sum() / 1e3
    )
    shown = {name: (count, us) for name, count, us in lengths.rows()}
    for name, one in xprof_figures.kernels(profile).items():
        assert shown.pop(name) == (one.count, pytest.approx(one.total_us, abs=0.002 * one.count))
    assert not shown
