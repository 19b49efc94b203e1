"""The metric `nccl_tests_efficiency`: speed of collectives relative to nccl-tests on the same machines."""

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
from ccl_bench.metrics.shared.ceiling import REACHES, with_ceiling
from ccl_bench.metrics.shared.other_sources import RECORDS, inspector_finding
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS

if TYPE_CHECKING:
    from ccl_bench.side_files import NcclTests

_GIVE = (
    "run all_reduce_perf and similar tests with the same number of ranks, and pass "
    "their output with --ceiling FILE"
)

MOST = 1.1
"""Above this, the test was slower than the run by more than its repetitions differ."""


def _of_records(recorded_transfers: pl.DataFrame, nccl_tests: NcclTests | None) -> Measurement:
    measurement = _efficiency(recorded_transfers, nccl_tests, None)
    return replace(measurement, window=RECORDS, findings=[inspector_finding(), *measurement.findings])


@metric(unit="ratio", better="higher", applies=(checks.several_ranks,), otherwise=(_of_records,))
def nccl_tests_efficiency(
    transfers: pl.DataFrame, nccl_tests: NcclTests | None, devices: pl.DataFrame | None = None
) -> Measurement:
    """Speed of collectives relative to nccl-tests at the same sizes; 1 means equally fast.

    Formula:
        nccl_tests_efficiency = sum of t_test(S) / sum of t, over the calls in steps that have a t_test

        t_test: time of nccl-tests (or rccl-tests) for the same collective, number of ranks, reach and size.

    Caveats:
        The faster of in-place and out-of-place is used. Between two measured sizes, the logarithm of time
        is interpolated over that of size. Other sizes, collectives and numbers of ranks have no ceiling;
        `uncovered` lists those calls, and no sum includes them. t is as for `bandwidth_utilization_*`:
        `basis` states whether it is free of waiting. The element type is ignored. In a run, compute and
        other collectives share the device and the links; nccl-tests has them for itself. The file must come
        from the machines of the run: another device name in it is a finding.

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
    lacking = looked_up.filter(pl.col("ceiling_ns").is_null())
    uncovered = lacking.group_by("collective", "size", "lacks", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls_count"),
        (pl.col("time_ns").sum() / SECOND_NS).alias("time_s"),
    )
    ordered = uncovered.sort("time_s", descending=True, maintain_order=True)
    missing = ordered.rename({"size": "group_size"}).to_dicts()
    if covered.is_empty():
        raise NotMeasurable(f"nccl-tests measured no call of this run: {missing[0]['lacks']}", fix=_GIVE)
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
    findings = []
    if missing:
        count = sum(row["calls_count"] for row in missing)
        share = 100 * sum(row["time_s"] for row in missing) * SECOND_NS / _sum(looked_up, "time_ns")
        message = (
            f"nccl-tests has no time for {count} of {counted(looked_up.height, 'call')}, {share:.3g} % of "
            f"their time: {missing[0]['lacks']}"
        )
        findings.append(Finding("ceiling-incomplete", "warning", message, count=count))
    seen = set() if devices is None else {*devices["name"].drop_nulls()} - {""}
    if seen and nccl_tests.device_names and not seen & nccl_tests.device_names:
        message = (
            f"nccl-tests ran on {' and '.join(sorted(nccl_tests.device_names))}, and the run on "
            f"{' and '.join(sorted(seen))}"
        )
        findings.append(Finding("ceiling-of-other-device", "warning", message))
    if value > MOST:
        message = f"collectives of the run are {value:.3g} times as fast as nccl-tests"
        findings.append(
            Finding("ceiling-exceeded", "warning", message + ": it measured other links or settings")
        )
    return Measurement(value, details, window=CALLS_OF_STEPS, findings=findings)


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
    return [
        {
            "collective": row.pop("collective"),
            "group_size": row.pop("size"),
            "reach": REACHES[row.pop("spans_nodes")],
            **({"message_bytes": row.pop("size_bytes")} if "size_bytes" in row else {}),
            **row,
        }
        for row in kinds.sort(by, nulls_last=True).to_dicts()
    ]
