"""A simulation by ASTRA-sim beside the recorded steps, and beside the replay with the same network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.communication.bandwidth import known_bus_factor
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.units import SECOND_NS
from ccl_bench.chakra.simulated import read_result
from ccl_bench.chakra.simulation import TABLES as SIMULATION_TABLES
from ccl_bench.chakra.simulator import RING_STEPS, network_levels
from ccl_bench.chakra.workload import workload
from ccl_bench.evaluate.load import load_tables
from ccl_bench.result.simulation import SimulatedRun, SimulatedStep
from ccl_bench.whatif.run_graph import OWN, TABLES, VALUES, graph_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.chakra.simulator import Level
    from ccl_bench.run import Run
    from ccl_bench.whatif.event_graph import Times
    from ccl_bench.whatif.run_graph import RunGraph


def compare_simulation(run: Run, result: str) -> SimulatedRun:
    """Return the steps of a run beside those in the output of ASTRA-sim.

    Raises InputError if the output is not that of one finished simulation of all ranks of the run.
    """
    loaded = load_tables(run, (*dict.fromkeys((*SIMULATION_TABLES, *TABLES)),))
    inputs = loaded.inputs
    work = workload(inputs, str(run.path))
    simulated = read_result(result, len(work.ranks))
    remarks = list(work.remarks)
    predicted: dict[int, float] = {}
    try:
        levels = network_levels(inputs, len(work.ranks))
        predicted = _predicted(graph_of(run, loaded), inputs["groups"], levels, work.steps)
    except NotMeasurable as error:
        remarks.append(f"the replay predicts nothing: {error.message}")
    count = len(work.steps)
    ranks = [
        SimulatedStep(
            of_rank.rank,
            of_rank.recorded_ns / SECOND_NS / count,
            simulated[of_rank.rank].cycles / SECOND_NS / count,
            predicted.get(of_rank.rank),
        )
        for of_rank in work.ranks
    ]
    return SimulatedRun(work.steps, tuple(ranks), tuple(remarks))


def _predicted(
    graph: RunGraph, groups: pl.DataFrame, levels: Sequence[Level], steps: Sequence[int]
) -> dict[int, float]:
    """Return the mean step of each rank if matched collectives take the time of the network, s."""
    if missing := next((level for level in levels if level.bytes_per_ns is None), None):
        fix = "record calls of several sizes, or name the device in the card"
        message = f"bandwidth and latency {missing.reach} are unknown: {missing.source}"
        raise NotMeasurable(message, fix=fix)
    moments = graph.events.replay(network_values(graph, groups, levels)[:, None])[:, 0]
    rank_of = dict(graph.operations.select("trace", "rank").unique().iter_rows())
    lengths: dict[int, list[float]] = {}
    for (step, trace), length in graph.trace_lengths(moments).items():
        if step in steps:
            lengths.setdefault(rank_of[trace], []).append(length)
    return {rank: float(np.mean(each)) for rank, each in lengths.items() if len(each) == len(steps)}


def network_values(graph: RunGraph, groups: pl.DataFrame, levels: Sequence[Level]) -> Times:
    """Return the recorded times, with those of matched collectives on the network.

    A ring over n ranks takes `steps · a + factor · size / B`, with the bus factor of the collective. Calls
    over several nodes keep their time unless a group has one rank on each.
    """
    values = graph.values.copy()
    on_node = levels[0].count if len(levels) > 1 else 0
    level_of: dict[str, Level] = {}
    for group, members in groups.drop_nulls("members").select("group", "members").iter_rows():
        nodes = {rank // on_node for rank in members} if on_node else {0}
        if len(nodes) == 1:
            level_of[group] = levels[0]
        elif len(nodes) == len(members):
            level_of[group] = levels[1]
    rows = graph.operations.select("row", "collective", "size", "size_bytes", "group")
    for row, collective, size, size_bytes, group in rows.drop_nulls().iter_rows():
        level, steps = level_of.get(group), RING_STEPS.get(collective)
        if graph.meets[row] < 0 or level is None or steps is None or not level.bytes_per_ns:
            continue
        moved_ns = size_bytes * (known_bus_factor(collective, size) or 0) / level.bytes_per_ns
        values[row * VALUES + OWN] = steps * (size - 1) * (level.step_ns or 0) + moved_ns
    return values
