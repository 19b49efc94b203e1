"""Additional files for ASTRA-sim: groups, network and system, with measured values or none.

Sources: astra-sim/astra-sim, astra-sim/workload/Workload.cc (groups), examples/network/analytical (network),
examples/system/native_collectives/Ring_4chunks.json (system).
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ccl_bench.analysis.communication.bandwidth import LEAST_R_SQUARED, WAIT_FREE
from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import GIGA
from ccl_bench.catalog.devices import device
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.run import Run

GROUPS, NETWORK, SYSTEM = "comm_group.json", "network.yml", "system.json"

_ALGORITHMS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_SETTINGS: dict[str, Any] = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 4,
    **{f"{name}-implementation": ["ring"] for name in _ALGORITHMS},
    "collective-optimization": "localBWAware",
    "boost-mode": 0,
    "roofline-enabled": 0,
}
"""ASTRA-sim's own example, without the model that replaces measured durations of work."""

_RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Collective → steps of a ring over n ranks, divided by n - 1."""

_REACH = {None: "", False: " inside a node", True: " between nodes"}


def refuse_existing_files(paths: Iterable[Path], *, force: bool) -> None:
    """Raise UsageError if a file exists, unless `force` is given."""
    existing = next((path for path in paths if path.exists()), None)
    if existing and not force:
        raise UsageError(f"{existing} already exists", fix="give another directory, or --force to replace it")


def write_groups(folder: Path, members: Mapping[int, Sequence[int]]) -> None:
    """Write the ranks of each numbered group for ASTRA-sim."""
    groups = {str(number): list(ranks) for number, ranks in sorted(members.items())}
    replace_text(folder / GROUPS, json.dumps(groups) + "\n")


def write_machine(run: Run, folder: Path, inputs: Mapping[str, Any], ranks: int) -> list[str]:
    """Write network and system for ASTRA-sim, and return remarks on values that the user must add."""
    facts = run.facts
    world = facts.world_size.value if facts.world_size else ranks
    on_node = facts.devices_per_node.value if facts.devices_per_node else None
    text, lacking = network(inputs["transfers"], world, on_node)
    replace_text(folder / NETWORK, text)
    remarks = [f"{NETWORK}: {reason}" for reason in lacking]
    several = on_node is not None and 0 < on_node < world
    settings = {
        name: value * 2 if several and value == ["ring"] else value for name, value in _SETTINGS.items()
    }
    devices = inputs.get("devices")
    for name in [] if devices is None else devices["name"].drop_nulls().unique().sort():
        with contextlib.suppress(NotMeasurable):  # the catalog does not have the device
            if bandwidth := device(name).memory_bandwidth_bytes_per_s:
                settings["local-mem-bw"] = bandwidth / GIGA
                break
    else:
        remarks.append(
            f"{SYSTEM}: local-mem-bw is left out: the catalog has no memory bandwidth of the device"
        )
    replace_text(folder / SYSTEM, json.dumps(settings, indent=2) + "\n")
    if ranks < world:
        remarks.append(f"only {ranks} of {world} ranks have a trace, but ASTRA-sim needs a file for each")
    return remarks


def network(transfers: pl.DataFrame, world: int, on_node: int | None) -> tuple[str, list[str]]:
    """Return the network in YAML, and remarks on values that could not be measured."""
    is_divided = on_node is not None and 0 < on_node < world and world % on_node == 0
    levels: list[bool | None] = [False, True] if is_divided else [None]
    counts = [on_node, world // on_node] if is_divided and on_node else [world]
    free = transfers.filter((pl.col("basis") == WAIT_FREE) & pl.col("collective").is_in([*_RING_STEPS]))
    fits = [link(free if level is None else free.filter(pl.col("spans_nodes") == level)) for level in levels]
    lines = [
        "# Written by ccl-bench. Bandwidth and latency are measured: least squares of the times of wait-free",
        "# collectives over the steps of a ring and the bytes that it sends.",
        f"topology: [ {', '.join(['Switch'] * len(levels))} ]  # assumed: traces do not show it",
        f"npus_count: [ {', '.join(map(str, counts))} ]",
    ]
    reasons = [
        f"bandwidth and latency{_REACH[level]} are left out: {fit}"
        for level, fit in zip(levels, fits, strict=True)
        if isinstance(fit, str)
    ]
    if reasons:
        return "\n".join([*lines, *(f"# {reason}" for reason in reasons)]) + "\n", reasons
    links = [fit for fit in fits if not isinstance(fit, str)]
    lines.append(f"bandwidth: [ {', '.join(f'{rate:.6g}' for rate, _ in links)} ]  # GB/s")
    lines.append(f"latency: [ {', '.join(f'{latency:.6g}' for _, latency in links)} ]  # ns")
    return "\n".join(lines) + "\n", []


def link(transfers: pl.DataFrame) -> tuple[float, float] | str:
    """Return bandwidth, GB/s, and latency, ns, of one step of a ring, or why the fit fails."""
    rows = transfers.drop_nulls(["bus_factor", "size"])
    if rows["size_bytes"].n_unique() < 2:
        return "fewer than two message sizes of wait-free collectives"
    steps = rows["collective"].replace_strict(_RING_STEPS, return_dtype=pl.Int64) * (rows["size"] - 1)
    sent, times = rows["size_bytes"] * rows["bus_factor"], rows["time_ns"].to_numpy()
    columns = np.column_stack([steps.to_numpy(), sent.to_numpy()]).astype(float)
    (latency, beta), *_ = np.linalg.lstsq(columns, times.astype(float), rcond=None)
    spread = float(((times - times.mean()) ** 2).sum())
    fit = 1 - float(((times - columns @ [latency, beta]) ** 2).sum()) / spread if spread else 0.0
    if beta <= 0 or latency < 0 or fit < LEAST_R_SQUARED:
        return f"no line fits their times (R squared {fit:.2f}, latency {latency:.4g} ns)"
    return 1 / float(beta), float(latency)
