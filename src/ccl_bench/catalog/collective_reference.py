"""Times of collectives in clean measurements, by device, library, group size and bytes.

The measurements are of groups inside one node. Nothing is extrapolated: not beyond the sizes that were
measured, and neither to another number of devices nor to groups that cross nodes. What is missing is refused
with the command of nccl-tests that measures it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from math import exp, log
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import numbers
from ccl_bench.catalog import devices, load_data

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
"""Collective → program of nccl-tests without `_perf`, where the two differ."""


def time_at(size_bytes: int, sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the time of a size that lies between measured ones.

    The logarithm of time is interpolated over that of size, which is exact where latency or bandwidth alone
    determines the time. `sizes` ascend.
    """
    place = bisect_left(sizes, size_bytes)
    if sizes[place] == size_bytes:
        return times[place]
    low, high = place - 1, place
    share = log(size_bytes / sizes[low]) / log(sizes[high] / sizes[low])
    return exp(log(times[low]) + share * log(times[high] / times[low]))


def measurement(collective: str, group_size: int, *, spans_nodes: bool | None = None) -> str:
    """Return what to do to get the time of a collective over a group."""
    program = f"{_PROGRAMS.get(collective, collective)}_perf -b 8 -e 8G -f 2"
    command = f"mpirun -np {group_size} {program} -g 1" if spans_nodes else f"{program} -g {group_size}"
    return f"run `{command}` of nccl-tests on these machines, and pass its output with --ceiling FILE"


@dataclass(frozen=True, slots=True)
class ReferenceCurve:
    """Measured times of one collective over one group, by size."""

    system: str
    """Key of the system, such as `a100_sxm`."""
    device: str
    """How messages name the device."""
    library: str
    """Library, such as `nccl`."""
    version: str
    """Version of the library that was measured."""
    collective: str
    """Canonical name."""
    group_size: int
    """Devices that took part, all of one node."""
    sizes: tuple[int, ...]
    """Messages as nccl-tests counts them, bytes, ascending."""
    times_s: tuple[float, ...]
    """Time of one call of each size, s."""

    @property
    def reaches(self) -> str:
        """What reaches these times, such as `NCCL 2.27.3 reaches on 8 A100 SXM`."""
        return f"{_LIBRARIES[self.library]} {self.version} reaches on {self.group_size} {self.device}"

    def time_s(self, size_bytes: int) -> float:
        """Return the time of a message, s; NotMeasurable outside the measured sizes."""
        if not self.sizes[0] <= size_bytes <= self.sizes[-1]:
            message = (
                f"{self.collective} over {self.group_size} {self.device} was measured from "
                f"{self.sizes[0]} to {self.sizes[-1]} bytes, not with {size_bytes}"
            )
            raise NotMeasurable(message, fix=measurement(self.collective, self.group_size))
        return time_at(size_bytes, self.sizes, self.times_s)


_USUAL = 8
"""Devices of a node, where the measured system has no fixed number."""

_LIBRARIES = {
    "nccl": "NCCL",
    "oneccl": "oneCCL",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
}
"""Library → how messages write it."""


def system(device: str) -> str | None:
    """Return the key of the system behind a device's name, None if none of that device was measured.

    A vague name such as `A100`, which may also be a PCI Express card, is of no system.
    """
    named = devices.models(device)
    for row in load_data("collective_reference")["system"]:
        if device == row["name"] or device.strip() in row.get("products", ()):
            return str(row["name"])
        if named and {*named} <= {*row.get("devices", ())}:
            return str(row["name"])
    return None


def reference_curve(
    device: str,
    collective: str,
    group_size: int,
    *,
    library: str = "nccl",
    version: str = "",
    spans_nodes: bool | None = None,
    per_node: int | None = None,
    job_size: int | None = None,
    dtype: str = "half",
    in_graph: bool = False,
) -> ReferenceCurve:
    """Return the measured times of a collective over a group, or raise NotMeasurable.

    Args:
        device: Name of the device that a trace, a driver or a card gives, or the key of a system.
        collective: Canonical name, as in `catalog.collectives`.
        group_size: Devices that take part.
        library: `nccl`, `oneccl`, or the engine whose own all-reduce runs: `vllm`, `sglang`, `trtllm`.
        version: Version of the library; the nearest one that was measured counts, the newest if unknown.
        spans_nodes: Whether the group crosses nodes; None if unknown.
        per_node: Devices of a node where the job has several; other nodes than the measured ones are refused.
        job_size: Ranks of the job. If a node has fewer, a group of unknown place is refused.
        dtype: `half` or `int8`; engines were measured with one type alone.
        in_graph: Whether a CUDA graph launches the call; engines were measured with and without.
    """
    fix = measurement(collective, group_size, spans_nodes=spans_nodes)
    key = system(device)
    if key is None:
        raise NotMeasurable(f"no collectives were measured on {device}", fix=fix)
    row: dict[str, Any] = next(
        row for row in load_data("collective_reference")["system"] if row["name"] == key
    )
    title = row["title"]
    if spans_nodes:
        message = (
            f"the reference of {title} is of groups in one node, and this group of {group_size} spans several"
        )
        raise NotMeasurable(message, fix=fix)
    if per_node is not None and per_node != row.get("per_node", per_node):
        message = f"the reference is of nodes with {row['per_node']} {title}, and these have {per_node}"
        raise NotMeasurable(f"{message}: their links differ", fix=fix)
    if spans_nodes is None and job_size is not None and job_size > row.get("per_node", _USUAL):
        message = f"whether groups of {group_size} of the {job_size} ranks cross nodes is unknown"
        raise NotMeasurable(
            message, fix=f"write the devices of a node (count_per_node) into the card, or {fix}"
        )
    of_collective = _table().filter(system=key, library=library, collective=collective)
    if of_collective.is_empty():
        name = _LIBRARIES.get(library, library)
        raise NotMeasurable(f"no {collective} of {name} was measured on {title}", fix=fix)
    of_group = of_collective.filter(group_size=group_size)
    if of_group.is_empty():
        counts = numbers(of_collective["group_size"].unique().sort().to_list())
        message = f"{collective} was measured over {counts} {title}, not over {group_size}"
        raise NotMeasurable(message, fix=fix)
    nearest = min(of_group["version"].unique().to_list(), key=lambda measured: _distance(measured, version))
    kinds = ["", "graph" if in_graph else "eager"]
    chosen = of_group.filter(
        (pl.col("version") == nearest)
        & (pl.col("kind").is_in(kinds))
        & ((pl.col("dtype") == dtype) | (pl.col("dtype") == "bfloat16"))
    ).sort("size_bytes")
    if chosen.is_empty():
        message = f"{collective} over {group_size} {title} was not measured with {dtype} elements"
        raise NotMeasurable(message, fix=fix)
    return ReferenceCurve(
        key, title, library, nearest, collective, group_size,
        tuple(chosen["size_bytes"]), tuple(chosen["time_s"]),
    )  # fmt: skip


def _distance(measured: str, version: str) -> tuple[int, ...]:
    """Return how far a measured version is from that of a run; without the latter, how old it is."""
    measured_parts, wanted_parts = _numbers(measured), _numbers(version)
    age = tuple(-number for number in measured_parts)
    return (
        (*(abs(a - b) for a, b in zip(measured_parts, wanted_parts, strict=True)), *age) if version else age
    )


def _numbers(version: str) -> tuple[int, ...]:
    parts = [int(number) for number in re.findall(r"\d+", version)[:4]]
    return (*parts, *[0] * (4 - len(parts)))


@cache
def _table() -> pl.DataFrame:
    raw = get_data(__package__, "collective_reference.parquet")
    if raw is None:
        raise FileNotFoundError(f"collective_reference.parquet is missing from {__package__}")
    table = pl.read_parquet(BytesIO(raw))
    return table.with_columns(pl.col(pl.Categorical).cast(pl.String))
