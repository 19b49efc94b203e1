"""What a run's collectives are compared with: the user's own nccl-tests, else measurements of the catalog.

The element type is ignored, as with nccl-tests on the same machines. From 1 MiB, all-gathers and all-to-alls
of bytes take as long as those of two-byte types; reductions of bytes, which are rare, take 4 to 6 % longer
with NVLink (median).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.bandwidth import known_bus_factor
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.catalog.collective_reference import ReferenceCurve, measurement, reference_curve
from ccl_bench.metrics.shared.ceiling import with_ceiling

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import CommunicationLibrary, Facts
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
    job_size: int | None = None
    """Ranks of the job; None if unknown."""


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
    per_node = on_node.value if on_node and has_more else None
    return ReferenceSystem(device, name, version, per_node, ranks.value if ranks else None)


def with_reference(
    transfers: pl.DataFrame, tests: NcclTests | None, system: ReferenceSystem | None
) -> pl.DataFrame:
    """Return transfers with the time that the reference takes for the same, or why there is none.

    Adds `reference_ns`, its `library` and `library_version`, and in words what `reaches` it; else what it
    `lacks`, and what to do about that as `fix`.
    """
    keys = ["collective", "size", "spans_nodes", "size_bytes", "bus_factor"]
    kinds = with_ceiling(transfers.select(keys).unique(maintain_order=True), tests)
    curves: dict[tuple[Any, ...], ReferenceCurve | NotMeasurable] = {}
    rows = []
    for row in kinds.to_dicts():
        if row["ceiling_ns"] is not None:
            reaches = f"{OWN_TESTS} reaches over {row['size']} ranks"
            rows.append({"reference_ns": row["ceiling_ns"], "library": OWN_TESTS, "reaches": reaches})
            continue
        kind = tuple(row[key] for key in ("collective", "size", "spans_nodes", "bus_factor"))
        if kind not in curves:
            curves[kind] = _curve(system, *kind)
        rows.append(_looked_up(curves[kind], row["size_bytes"]))
    schema = {
        "reference_ns": pl.Float64,
        **dict.fromkeys(("library", "library_version", "reaches", "lacks", "fix"), pl.String),
    }
    looked_up = pl.concat([kinds.select(keys), pl.DataFrame(rows, schema=schema)], how="horizontal")
    return transfers.join(looked_up, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _curve(
    system: ReferenceSystem | None,
    collective: str,
    ranks: int | None,
    spans_nodes: bool | None,
    bus_factor: float | None,
) -> ReferenceCurve | NotMeasurable:
    """Return the curve of the catalog for calls over a group, or why there is none."""
    fix = measurement(collective, ranks or 8, spans_nodes=spans_nodes)
    if system is not None and system.library == "gloo":
        message = "gloo moves data through the CPU, and the reference is of devices"
    elif system is None or not system.device:
        message, fix = "the device is unknown", f"write its model into the card, or {fix}"
    elif ranks is None:
        message = "the size of their group is unknown"
    elif bus_factor is None or bus_factor != known_bus_factor(collective, ranks):
        message = f"parts of {collective} have different sizes, unlike the reference"
    else:
        try:
            return reference_curve(
                system.device,
                collective,
                ranks,
                library=system.library,
                version=system.version,
                spans_nodes=spans_nodes,
                per_node=system.per_node,
                job_size=system.job_size,
            )
        except NotMeasurable as error:
            return error
    return NotMeasurable(message, fix=fix)


def _looked_up(curve: ReferenceCurve | NotMeasurable, size_bytes: int) -> dict[str, Any]:
    """Return the time of a size with its source, or what is missing."""
    try:
        if isinstance(curve, NotMeasurable):
            raise curve
        time_ns = curve.time_s(size_bytes) * SECOND_NS
    except NotMeasurable as error:
        return {"lacks": error.message, "fix": error.fix}
    return {
        "reference_ns": time_ns,
        "library": curve.library,
        "library_version": curve.version,
        "reaches": curve.reaches,
    }
