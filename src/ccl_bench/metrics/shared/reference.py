"""What a run's collectives are compared with: the user's own nccl-tests, else measurements of the catalog.

The element type is ignored, as with nccl-tests on the same machines. From 1 MiB, all-gathers and all-to-alls
of bytes take as long as those of two-byte types; reductions of bytes, which are rare, take a median of 4 to 6 %
longer with NVLink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.bandwidth import known_bus_factor
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.catalog.collective_reference import measurement, reference_curve
from ccl_bench.metrics.shared.ceiling import with_ceiling

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.card.model import CommunicationLibrary
    from ccl_bench.side_files import NcclTests

OWN_TESTS = "nccl-tests"
"""What stands for the library where the reference is the user's own measurement."""


@dataclass(frozen=True, slots=True)
class ReferenceSystem:
    """What decides which measurements of the catalog a run is compared with."""

    device: str
    """Name of the device; empty if unknown."""
    library: str
    """Key of the library, such as `nccl`."""
    version: str
    """Its version; empty if unknown."""
    per_node: int | None
    """Devices of a node, if the job has several nodes; of one node it may use a part."""


@dataclass(frozen=True, slots=True)
class References:
    """What collectives of a run are compared with, the user's own measurement first."""

    tests: NcclTests | None
    system: ReferenceSystem


def reference_system(
    facts: Facts,
    devices: pl.DataFrame | None,
    library: CommunicationLibrary | None,
    calls: pl.DataFrame | None = None,
) -> ReferenceSystem:
    """Return what the collectives of a run ran on; devices that traces saw come before the stated one."""
    seen = [] if devices is None else sorted({*devices["name"].drop_nulls()} - {""})
    device = " and ".join(seen) or (facts.device.value if facts.device else "")
    is_gloo = calls is not None and bool(calls["is_paired"].is_not_null().any())
    name = "gloo" if is_gloo else (library.name if library and library.name else "nccl").lower()
    ranks, on_node = facts.world_size, facts.devices_per_node
    has_more = ranks is not None and on_node is not None and ranks.value > on_node.value
    version = library.version if library and library.version else ""
    return ReferenceSystem(device, name, version, on_node.value if on_node and has_more else None)


def with_reference(
    transfers: pl.DataFrame, tests: NcclTests | None, system: ReferenceSystem | None
) -> pl.DataFrame:
    """Return transfers with the time that the reference takes for the same, or why there is none.

    Adds `reference_ns`, its `library` and `library_version`, and in words what `reaches` it; else what it
    `lacks`, and what to do about that as `fix`.
    """
    keys = ["collective", "size", "spans_nodes", "size_bytes", "bus_factor"]
    kinds = with_ceiling(transfers.select(keys).unique(maintain_order=True), tests)
    rows = [
        _of_tests(row["ceiling_ns"], row["size"])
        if row["ceiling_ns"] is not None
        else _of_catalog(system, row)
        for row in kinds.to_dicts()
    ]
    schema = {
        "reference_ns": pl.Float64,
        **dict.fromkeys(("library", "library_version", "reaches", "lacks", "fix"), pl.String),
    }
    looked_up = pl.concat([kinds.select(keys), pl.DataFrame(rows, schema=schema)], how="horizontal")
    return transfers.join(looked_up, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _of_tests(time_ns: float, ranks: int) -> dict[str, Any]:
    return {
        "reference_ns": time_ns,
        "library": OWN_TESTS,
        "reaches": f"{OWN_TESTS} reaches over {ranks} ranks",
    }


def _of_catalog(system: ReferenceSystem | None, row: dict[str, Any]) -> dict[str, Any]:
    """Return the time of the catalog for calls of one kind, or what is missing."""
    collective, ranks = row["collective"], row["size"]
    fix = measurement(collective, ranks or 8, spans_nodes=row["spans_nodes"])
    if system is not None and system.library == "gloo":
        return {"lacks": "gloo moves data through the CPU, and the reference is of devices", "fix": fix}
    if system is None or not system.device:
        return {"lacks": "the device is unknown", "fix": f"write its model into the card, or {fix}"}
    if ranks is None:
        return {"lacks": "the size of their group is unknown", "fix": fix}
    if row["bus_factor"] is None or row["bus_factor"] != known_bus_factor(collective, ranks):
        return {"lacks": f"parts of {collective} have different sizes, unlike the reference", "fix": fix}
    try:
        curve = reference_curve(
            system.device,
            collective,
            ranks,
            library=system.library,
            version=system.version,
            spans_nodes=row["spans_nodes"],
            per_node=system.per_node,
        )
        time_ns = curve.time_s(row["size_bytes"]) * SECOND_NS
    except NotMeasurable as error:
        return {"lacks": error.message, "fix": error.fix}
    return {
        "reference_ns": time_ns,
        "library": curve.library,
        "library_version": curve.version,
        "reaches": curve.reaches,
    }
