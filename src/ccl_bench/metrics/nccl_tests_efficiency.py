"""How close collectives come to what nccl-tests measured on the same machines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.bandwidth import BASES
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.ceiling import with_ceiling
from ccl_bench.metrics.shared.other_sources import RECORDS, inspector_finding
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.side_files import NcclTests

_GIVE = "run all_reduce_perf and the like with as many ranks, and give what they print with --ceiling FILE"

MOST = 1.1
"""Above this the test was slower than the run by more than runs of it differ."""

_REACH = {True: "between nodes", False: "inside a node", None: "unknown"}


def _of_records(recorded_transfers: pl.DataFrame, nccl_tests: NcclTests | None) -> Measurement:
    measurement = _efficiency(recorded_transfers, nccl_tests, None)
    return replace(measurement, window=RECORDS, findings=[inspector_finding(), *measurement.findings])


@metric(unit="ratio", better="higher", applies=(checks.several_ranks,), otherwise=(_of_records,))
def nccl_tests_efficiency(
    transfers: pl.DataFrame, nccl_tests: NcclTests | None, devices: pl.DataFrame | None = None
) -> Measurement:
    """Speed of collectives over what nccl-tests reached at the same sizes; 1 is as fast.

    Formula:
        nccl_tests_efficiency = sum of t_test(S) / sum of t, over the calls in steps that have a t_test

        t_test: time of nccl-tests (or rccl-tests) for the same collective, number of ranks, reach and size.

    Caveats:
        Of the two ways, in place and out of place, the faster counts. Between two measured sizes the
        logarithm of time is interpolated over that of size; beyond them, for other collectives and for other
        numbers of ranks there is no ceiling, and those calls are in no sum: `uncovered` has them. t is as for
        `bandwidth_utilization_*`: `basis` says whether it is free of waiting. The element type does not
        count. In a run compute and other collectives share the device and the links, which nccl-tests has
        for itself. The file must be of the machines of the run: a name of another device is a finding.

    Reference:
        nccl-tests doc/PERFORMANCE.md.
    """
    return _efficiency(transfers, nccl_tests, devices)


def _efficiency(
    transfers: pl.DataFrame, nccl_tests: NcclTests | None, devices: pl.DataFrame | None
) -> Measurement:
    if nccl_tests is None or not nccl_tests.measured:
        raise NotMeasurable("the run has no output of nccl-tests", fix=_GIVE)
    moving = transfers.drop_nulls("bus_factor")
    if moving.is_empty():
        raise NotMeasurable(
            "no collective with a known size and group size in a step",
            fix="record NCCL with torch 2.2 or later, whose kernels carry sizes and groups",
        )
    basis = next(kind for kind in BASES if kind in moving["basis"])
    looked_up = with_ceiling(moving.filter(pl.col("basis") == basis), nccl_tests)
    covered = looked_up.drop_nulls("ceiling_ns")
    missing = _uncovered(looked_up.filter(pl.col("ceiling_ns").is_null()))
    if covered.is_empty():
        raise NotMeasurable(f"nccl-tests has no call of this run: {missing[0]['lacks']}", fix=_GIVE)
    value = _sum(covered, "ceiling_ns") / _sum(covered, "time_ns")
    details = {
        "basis": basis,
        "files": list(dict.fromkeys(nccl_tests.files)),
        "calls_count": covered.height,
        "covered_time_pct": 100 * _sum(covered, "time_ns") / _sum(looked_up, "time_ns"),
        "by_collective": _rows(covered, "collective", "size", "spans_nodes"),
        "by_size": _rows(covered, "collective", "size", "spans_nodes", "size_bytes"),
        "uncovered": missing,
    }
    doubts = [*_incomplete(missing, looked_up), *_of_others(nccl_tests, devices), *_too_fast(value)]
    return Measurement(value, details, window=CALLS_OF_STEPS, findings=doubts)


def _sum(table: pl.DataFrame, column: str) -> float:
    return float(table[column].sum())


def _rows(covered: pl.DataFrame, *by: str) -> list[dict[str, Any]]:
    """Return time and efficiency of the calls of each kind."""
    bus_bytes = (pl.col("size_bytes") * pl.col("bus_factor")).sum()
    kinds = covered.group_by(by).agg(
        pl.len().cast(pl.Int64).alias("calls_count"),
        (pl.col("time_ns").sum() / SECOND_NS).alias("time_s"),
        (pl.col("ceiling_ns").sum() / SECOND_NS).alias("ceiling_s"),
        (bus_bytes / pl.col("time_ns").sum()).alias("bus_bandwidth_gb_per_s"),
        (bus_bytes / pl.col("ceiling_ns").sum()).alias("ceiling_bus_bandwidth_gb_per_s"),
        (pl.col("ceiling_ns").sum() / pl.col("time_ns").sum()).alias("efficiency_ratio"),
    )
    return [_named(row) for row in kinds.sort(by, nulls_last=True).iter_rows(named=True)]


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the names that details have."""
    named = {"group_size": row.pop("size"), "reach": _REACH[row.pop("spans_nodes")]}
    size = {"message_bytes": row.pop("size_bytes")} if "size_bytes" in row else {}
    return {"collective": row.pop("collective"), **named, **size, **row}


def _uncovered(lacking: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the calls without a ceiling by the reason, most time first."""
    uncovered = lacking.group_by("collective", "size", "lacks", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls_count"),
        (pl.col("time_ns").sum() / SECOND_NS).alias("time_s"),
    )
    ordered = uncovered.sort("time_s", descending=True, maintain_order=True)
    return ordered.rename({"size": "group_size"}).to_dicts()


def _incomplete(missing: list[dict[str, Any]], calls: pl.DataFrame) -> Iterable[Finding]:
    if missing:
        count = sum(row["calls_count"] for row in missing)
        share = 100 * sum(row["time_s"] for row in missing) * SECOND_NS / _sum(calls, "time_ns")
        message = (
            f"nccl-tests has no time for {count} of {counted(calls.height, 'call')}, {share:.3g} % of their "
            f"time: {missing[0]['lacks']}"
        )
        yield Finding("ceiling-incomplete", "warning", message, count=count)


def _of_others(tests: NcclTests, devices: pl.DataFrame | None) -> Iterable[Finding]:
    """Say where nccl-tests ran on other devices than the run."""
    seen = set() if devices is None else {*devices["name"].drop_nulls()} - {""}
    if seen and tests.device_names and not seen & tests.device_names:
        message = (
            f"nccl-tests ran on {' and '.join(sorted(tests.device_names))}, and the run on "
            f"{' and '.join(sorted(seen))}"
        )
        yield Finding("ceiling-of-other-device", "warning", message)


def _too_fast(value: float) -> Iterable[Finding]:
    if value > MOST:
        message = f"collectives of the run are {value:.3g} times as fast as nccl-tests"
        yield Finding("ceiling-exceeded", "warning", message + ": it measured other links or settings")
