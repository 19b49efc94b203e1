"""The machine of a run as ASTRA-sim's configuration: network, system and memory, with their sources.

The files are those of the analytical network, which has no congestion: a message over a switch takes
`2 · latency + bytes / bandwidth`, and a ring step `STEP_NS` more. Sources: astra-sim/astra-sim,
examples/network/analytical, examples/system/native_collectives, system/Sys.cc and workload/Workload.cc;
astra-sim/astra-network-analytical, NetworkParser.cpp, NetworkFunction.cpp and congestion_unaware;
astra-sim/astra-memory-analytical, AnalyticalRemoteMemory.cc.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ccl_bench.analysis.communication.bandwidth import LEAST_R_SQUARED, WAIT_FREE
from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import GIGA, SECOND_NS
from ccl_bench.catalog.collective_reference import reference_curve
from ccl_bench.catalog.devices import device
from ccl_bench.metrics.shared.reference import reference_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.catalog.collective_reference import ReferenceCurve
    from ccl_bench.catalog.devices import Device

NETWORK, SYSTEM, MEMORY = "network.yml", "system.json", "memory.json"

TABLES = ("transfers", "groups", "devices", "known_calls")
"""Tables of a run that show its machine."""

STEP_NS = 40
"""Time that ASTRA-sim adds to each step of a ring: endpoint delay, memory reads and writes, ns.

Derived from the output that its documentation shows, 64440 cycles for an all-reduce of 1 MiB over 8 ranks in
4 chunks, 500 ns and 50 GB/s: 56 messages of 1110 ns take 62160 of them.
"""

HOPS = 2
"""Links between two ranks of a switch, each with the latency of the network."""

GIB_PER_GB = GIGA / 2**30
"""ASTRA-sim's GB is 2^30 bytes (NetworkFunction.cpp)."""

RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Collective → steps of a ring over n ranks, divided by n - 1."""

_RINGS = ("all-reduce", "all-gather", "reduce-scatter")
_SETTINGS: dict[str, Any] = {
    "scheduling-policy": "FIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1,
    "collective-optimization": "localBWAware",
    "boost-mode": 0,
    "roofline-enabled": 0,
}

_MEANING = {
    "scheduling-policy": "calls run in the order in which they start, as on a stream",
    "endpoint-delay": "ns that a rank takes for a received message, as in ASTRA-sim's examples",
    "active-chunks-per-dimension": "chunks of a call at a time",
    "preferred-dataset-splits": "a call is one chunk: each chunk would take the fitted latency again",
    "collective-optimization": "with two dimensions, only the share of a node goes between nodes",
    "boost-mode": "off, as in ASTRA-sim's examples",
    "roofline-enabled": "off: work takes its measured time. local-mem-bw and peak-perf do not count then",
    "local-mem-bw": "memory bandwidth of the device, GB/s",
    "peak-perf": "dense peak of the device, TFLOP/s",
}


@dataclass(frozen=True, slots=True)
class Level:
    """One dimension of the network: the ranks of a node, or the nodes."""

    count: int
    """Ranks or nodes."""
    reach: str
    """What it joins, such as `inside a node`."""
    step_ns: float | None
    """Time of a ring step without data, ns."""
    bytes_per_ns: float | None
    source: str
    """Where both are from, or why they are missing."""

    @property
    def bandwidth(self) -> float | None:
        """Bandwidth in ASTRA-sim's GB/s, of 2^30 bytes."""
        return None if self.bytes_per_ns is None else self.bytes_per_ns * GIB_PER_GB

    @property
    def latency_ns(self) -> float | None:
        """Latency of one link, ns: that of a step without what ASTRA-sim adds, over the links of a switch."""
        return None if self.step_ns is None else max(0.0, self.step_ns - STEP_NS) / HOPS


@dataclass(frozen=True, slots=True)
class RingLine:
    """A fitted line of time over the steps of a ring and the bytes that it sends."""

    step_ns: float
    """Time of a step without data, ns."""
    bytes_per_ns: float
    calls: int
    """Calls that were fitted."""
    r_squared: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What the configuration states, in numbers."""

    levels: tuple[Level, ...]
    settings: Mapping[str, Any]
    sources: Mapping[str, str]
    """Setting → its source, of those that the catalog gives."""
    remarks: tuple[str, ...]

    @property
    def meanings(self) -> dict[str, str]:
        """Setting → its meaning, with the source if the catalog gives it."""
        ways = {f"{name}-implementation": "algorithm of each dimension: a ring, as fitted" for name in _RINGS}
        ways["all-to-all-implementation"] = "algorithm of each dimension: to each rank, one at a time"
        meanings = _MEANING | ways
        return {
            name: ". ".join(filter(None, (meanings[name], self.sources.get(name)))) for name in self.settings
        }


def refuse_existing_files(paths: Iterable[Path], *, force: bool) -> None:
    """Raise UsageError if a file exists, unless `force` is given."""
    existing = next((path for path in paths if path.exists()), None)
    if existing and not force:
        raise UsageError(f"{existing} already exists", fix="give another directory, or --force to replace it")


def machine(inputs: Mapping[str, Any], ranks: int) -> Machine:
    """Return the machine of a run from its `TABLES` and facts; `ranks` is the number of ranks."""
    levels = network_levels(inputs, ranks)
    settings = dict(_SETTINGS)
    for name in _RINGS:
        settings[f"{name}-implementation"] = ["ring"] * len(levels)
    settings["all-to-all-implementation"] = ["direct1"] * len(levels)
    sources: dict[str, str] = {}
    remarks = [
        f"{NETWORK}: bandwidth and latency {level.reach} are missing, fill them in: {level.source}"
        for level in levels
        if level.bandwidth is None
    ]
    system = reference_system(inputs["facts"], inputs.get("devices"), inputs.get("communication_library"))
    with contextlib.suppress(NotMeasurable):  # the catalog does not have the device
        accelerator = device(system.device)
        if accelerator.memory_bandwidth_bytes_per_s:
            settings["local-mem-bw"] = accelerator.memory_bandwidth_bytes_per_s / GIGA
            sources["local-mem-bw"] = _cited(accelerator, "memory_bandwidth_bytes_per_s")
        precision = inputs["facts"].precision
        dtype = precision.value if precision else "bf16"
        settings["peak-perf"] = accelerator.peak_flops(dtype) / 1e12
        sources["peak-perf"] = f"{dtype} of {accelerator.name}"
    if absent := [name for name in ("local-mem-bw", "peak-perf") if name not in settings]:
        named = system.device or "a device of unknown name"
        why = "ASTRA-sim needs them only with roofline-enabled"
        remarks.append(f"{SYSTEM}: the catalog has no {' and '.join(absent)} of {named}; {why}")
    return Machine(levels, settings, sources, tuple(remarks))


def _cited(accelerator: Device, figure: str) -> str:
    with contextlib.suppress(KeyError):  # a vague name shares a figure, but no source
        return f"{accelerator.name}: {accelerator.source(figure)}"
    return accelerator.name


def network_levels(inputs: Mapping[str, Any], ranks: int) -> tuple[Level, ...]:
    """Return the dimensions of the network, the ranks of a node first."""
    facts, groups = inputs["facts"], inputs["groups"]
    on_node = facts.devices_per_node.value if facts.devices_per_node else None
    free = inputs["transfers"].filter(
        (pl.col("basis") == WAIT_FREE) & pl.col("collective").is_in([*RING_STEPS])
    )
    if on_node is None or not 0 < on_node < ranks or ranks % on_node:
        return (_level(ranks, "of all ranks", free, _reference(inputs, ranks, groups)),)
    inside = free.filter(~pl.col("spans_nodes").fill_null(value=True))
    between = _between(free.filter("spans_nodes"), groups, on_node)
    nodes = _level(ranks // on_node, "between nodes", between, "the reference is of groups inside one node")
    if on_node == 1:
        return (nodes,)
    return (_level(on_node, "inside a node", inside, _reference(inputs, on_node, groups)), nodes)


def _between(calls: pl.DataFrame, groups: pl.DataFrame, on_node: int) -> pl.DataFrame | str:
    """Return the calls over groups with one rank a node: others also use the network inside a node."""
    alone: dict[bool, set[tuple[str, int]]] = {True: set(), False: set()}
    spanning = groups.filter("spans_nodes").drop_nulls("members")
    for dimension, members in spanning.select("dimension", "members").iter_rows():
        is_alone = len({rank // on_node for rank in members}) == len(members)
        alone[is_alone].add((dimension, len(members)))
    kinds = alone[True] - alone[False]
    fits = [kind in kinds for kind in calls.select("dimension", "size").iter_rows()]
    if any(fits) or calls.is_empty():
        return calls.filter(pl.Series(fits, dtype=pl.Boolean))
    return "its calls run over groups with several ranks a node, which use both networks"


def _level(count: int, reach: str, calls: pl.DataFrame | str, reference: ReferenceCurve | str) -> Level:
    """Return a dimension: fitted to calls of the run, or from the reference, or without numbers.

    The line of the reference meets its smallest message, which is all latency, and its largest.
    """
    fit = calls if isinstance(calls, str) else ring_line(calls)
    if not isinstance(fit, str):
        what = f"least squares of {counted(fit.calls, 'wait-free call')}, R squared {fit.r_squared:.2f}"
        return Level(count, reach, fit.step_ns, fit.bytes_per_ns, f"measured: {what}")
    if isinstance(reference, str):
        return Level(count, reach, None, None, f"{fit}; {reference}")
    steps = RING_STEPS[reference.collective] * (reference.group_size - 1)
    sent = steps / reference.group_size
    step = reference.times_s[0] * SECOND_NS / steps
    rate = reference.sizes[-1] * sent / ((reference.times_s[-1] - reference.times_s[0]) * SECOND_NS)
    what = (
        f"what {reference.reaches} with {reference.collective}: the smallest and the largest message, "
        "AIConfigurator (Apache-2.0)"
    )
    return Level(count, reach, step, rate, f"reference, not of this run ({fit}): {what}")


def ring_line(transfers: pl.DataFrame) -> RingLine | str:
    """Return the line of wait-free calls, or why there is none.

    Fits `t = steps · a + sent / B` by least squares, with the steps of a ring and the bytes that it sends.
    """
    rows = transfers.drop_nulls(["bus_factor", "size"])
    if rows["size_bytes"].n_unique() < 2:
        return "fewer than two message sizes of wait-free collectives"
    steps = rows["collective"].replace_strict(RING_STEPS, return_dtype=pl.Int64) * (rows["size"] - 1)
    sent, times = rows["size_bytes"] * rows["bus_factor"], rows["time_ns"].to_numpy()
    columns = np.column_stack([steps.to_numpy(), sent.to_numpy()]).astype(float)
    (step, beta), *_ = np.linalg.lstsq(columns, times.astype(float), rcond=None)
    spread = float(((times - times.mean()) ** 2).sum())
    fit = 1 - float(((times - columns @ [step, beta]) ** 2).sum()) / spread if spread else 0.0
    if beta <= 0 or step < 0 or fit < LEAST_R_SQUARED:
        return f"no line fits their times (R squared {fit:.2f}, latency {step:.4g} ns)"
    return RingLine(float(step), 1 / float(beta), rows.height, fit)


def _reference(inputs: Mapping[str, Any], count: int, groups: pl.DataFrame) -> ReferenceCurve | str:
    """Return the measured times of an all-reduce over a group inside a node, or why there are none."""
    system = reference_system(
        inputs["facts"], inputs.get("devices"), inputs.get("communication_library"), inputs["known_calls"]
    )
    if system.library == "gloo":
        return "gloo moves data through the CPU, and the reference is of devices"
    if not system.device:
        return "the device is unknown"
    inside = [
        len(members) for members in groups.drop_nulls("members")["members"] if 1 < len(members) <= count
    ]
    try:
        return reference_curve(
            system.device,
            "all_reduce",
            max(inside, default=count),
            library=system.library,
            version=system.version,
            spans_nodes=False if inputs["facts"].devices_per_node else None,
            per_node=system.per_node,
            job_size=system.job_size,
        )
    except NotMeasurable as error:
        return error.message


def network_text(levels: Sequence[Level]) -> str:
    """Return the network in YAML; bandwidth and latency are left out if one is missing."""
    lines = [
        "# Written by ccl-bench. GB are 2^30 bytes; a message crosses two links of a switch.",
        *(f"# {level.reach}: {level.source}" for level in levels),
        f"topology: [ {', '.join(['Switch'] * len(levels))} ]  # assumed: traces do not show it",
        f"npus_count: [ {', '.join(str(level.count) for level in levels)} ]",
    ]
    bandwidths = [level.bandwidth for level in levels if level.bandwidth is not None]
    latencies = [level.latency_ns for level in levels if level.latency_ns is not None]
    if len(bandwidths) == len(levels):
        lines.append(f"bandwidth: [ {', '.join(f'{each:.6g}' for each in bandwidths)} ]  # GB/s")
        lines.append(f"latency: [ {', '.join(f'{each:.6g}' for each in latencies)} ]  # ns")
    else:
        lines += ["# bandwidth: [ ... ]  # GB/s, one number each", "# latency: [ ... ]  # ns"]
    return "\n".join(lines) + "\n"


def system_text(settings: Mapping[str, Any]) -> str:
    """Return the system in JSON."""
    return json.dumps(settings, indent=2) + "\n"


def memory_text() -> str:
    """Return the memory in JSON: a recorded run has no memory beyond its devices."""
    return json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=2) + "\n"
