"""The metric `collective_efficiency`: speed of collectives relative to a clean measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.bandwidth import WAIT_FREE
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.ceiling import REACHES
from ccl_bench.metrics.shared.other_sources import RECORDS, inspector_finding
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS
from ccl_bench.metrics.shared.reference import ReferenceSystem, reference_system, with_reference

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import CommunicationLibrary, Facts
    from ccl_bench.side_files import NcclTests

_KINDS = ("collective", "dimension", "size", "spans_nodes", "size_bytes", "library", "library_version")


def _of_records(
    recorded_transfers: pl.DataFrame,
    facts: Facts,
    nccl_tests: NcclTests | None,
    communication_library: CommunicationLibrary | None,
) -> Measurement:
    system = reference_system(facts, None, communication_library)
    measurement = _efficiency(recorded_transfers, nccl_tests, system)
    return replace(measurement, window=RECORDS, findings=[inspector_finding()])


@metric(
    unit="%",
    better="higher",
    applies=(checks.several_ranks,),
    otherwise=(_of_records,),
    may_exceed_whole=True,
)
def collective_efficiency(
    transfers: pl.DataFrame,
    traffic: pl.DataFrame,
    devices: pl.DataFrame,
    facts: Facts,
    nccl_tests: NcclTests | None,
    communication_library: CommunicationLibrary | None,
) -> Measurement:
    """Speed of collectives relative to a clean measurement of the same library on the same system.

    Formula:
        collective_efficiency = 100 * sum of t_reference(S) / sum of t, over the calls in steps that have a
        t_reference

        t_reference: time of the same collective, number of devices and size, of the nearest version

    Caveats:
        The user's own output of nccl-tests comes first. Else the catalog counts: measurements inside one
        node, of A100, H100, H200, B200, B300, GB200, GB300, L40S, RTX PRO 6000 and Arc B60; links of
        PCI Express differ between servers with the same device. Between two measured sizes, the logarithm
        of time is interpolated over that of size; nothing is extrapolated. t is free of waiting: calls whose
        members were not all recorded are not compared. Calls without a reference are listed, and no sum
        includes them. The element type is ignored. An all-reduce of an engine's own is compared with NCCL.
        Values above 100 % are possible: the measurement is no limit. In a run, compute and other collectives
        share the device and the links, and the measurement has them for itself.

    Reference:
        AIConfigurator, measured performance of communication; nccl-tests doc/PERFORMANCE.md.
    """
    system = reference_system(facts, devices, communication_library, traffic)
    return _efficiency(transfers, nccl_tests, system)


def _efficiency(transfers: pl.DataFrame, tests: NcclTests | None, system: ReferenceSystem) -> Measurement:
    moving = transfers.filter(pl.col("basis") == WAIT_FREE).drop_nulls("bus_factor")
    if moving.is_empty():
        raise NotMeasurable(
            "no collective of which all members were recorded, with its size, in a step",
            fix="record sizes and groups of collectives: torch 2.2 or later",
            causes=checks.UNSIZED,
        )
    looked_up = with_reference(moving, tests, system)
    compared = looked_up.drop_nulls("reference_ns")
    rest = looked_up.filter(pl.col("reference_ns").is_null())
    seconds = pl.col("time_ns").sum() / SECOND_NS
    lacking = (
        rest.group_by("collective", "size", "lacks", "fix", maintain_order=True)
        .agg(pl.len().cast(pl.Int64).alias("calls_count"), seconds.alias("time_s"))
        .sort("time_s", descending=True, maintain_order=True)
        .rename({"size": "members", "lacks": "reason"})
        .to_dicts()
    )
    if compared.is_empty():
        raise NotMeasurable(f"no reference: {lacking[0]['reason']}", fix=lacking[0]["fix"])
    kinds = compared.group_by(_KINDS).agg(
        pl.len().cast(pl.Int64).alias("calls_count"),
        (pl.col("reference_ns").mean() / SECOND_NS).alias("reference_s"),
        (pl.col("time_ns").mean() / SECOND_NS).alias("recorded_s"),
    )
    details = {
        "calls": [_row(row) for row in kinds.sort(_KINDS, nulls_last=True).to_dicts()],
        "without_reference_s": float(rest.select(seconds).item()),
        "without_reference": lacking,
    }
    value = 100 * float(compared["reference_ns"].sum()) / float(compared["time_ns"].sum())
    return Measurement(value, details, window=CALLS_OF_STEPS)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of calls of one kind; times are those of a call."""
    return {
        "collective": row["collective"],
        "dimension": row["dimension"],
        "members": row["size"],
        "reach": REACHES[row["spans_nodes"]],
        "size_bytes": row["size_bytes"],
        "library": row["library"],
        "library_version": row["library_version"],
        "reference_s": row["reference_s"],
        "recorded_s": row["recorded_s"],
        "efficiency_pct": 100 * row["reference_s"] / row["recorded_s"],
        "calls_count": row["calls_count"],
    }
