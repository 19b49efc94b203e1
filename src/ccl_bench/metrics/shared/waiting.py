"""Communication time divided into waiting, transfer and unknown, for metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.calls import PARTS, TRANSFER, UNKNOWN, WAITING
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.shared.per_step import (
    columns_by_rank,
    columns_by_step,
    mean_of,
    seconds_by,
    seconds_by_keys,
    seconds_of,
    shares_by_rank,
)
from ccl_bench.schema.table import keep_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.metrics import Measurement

_STEP = ["trace", "step"]
_COLUMNS = [f"{part}_ns" for part in PARTS]


def of_steps(table: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the steps that count, without traces that are excluded from values."""
    return table.join(steps[_STEP], on=_STEP, how="semi", maintain_order="left")


def divided(breakdown: pl.DataFrame, parts: pl.DataFrame, whole: str) -> pl.DataFrame:
    """Return the steps of each trace with a column of `breakdown` divided into one column of ns per part.

    `whole` is `communication_ns` or `exposed_communication_ns`; the rest of it is unknown.
    """
    column = {"communication_ns": "time_ns", "exposed_communication_ns": "exposed_ns"}[whole]
    sums = parts.group_by(_STEP).agg(
        pl.col(column).filter(pl.col("part") == part).sum().alias(f"{part}_ns") for part in PARTS
    )
    known_parts = [pl.col(f"{part}_ns").fill_null(0) for part in (WAITING, TRANSFER)]
    rows = breakdown[["iteration", "rank", *_STEP, whole, "window_ns"]]
    return rows.join(sums, on=_STEP, how="left", maintain_order="left").with_columns(
        *known_parts, (pl.col(whole) - known_parts[0] - known_parts[1]).alias(f"{UNKNOWN}_ns")
    )


def parts_in_seconds(divided: pl.DataFrame, steps: pl.DataFrame) -> dict[str, float]:
    """Return {part: time in a step, mean over ranks, s}."""
    return dict(zip(PARTS, seconds_of(divided, steps, _COLUMNS), strict=True))


def parts_by_step(divided: pl.DataFrame, steps: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return {step: {part: time, mean over ranks, s}}."""
    return _turned(columns_by_step(divided, steps, _COLUMNS))


def parts_by_rank(divided: pl.DataFrame, steps: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return {rank: {part: time in a step, s}}."""
    return _turned(columns_by_rank(divided, steps, _COLUMNS))


def _turned(by_column: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    names = next(iter(by_column.values()))
    return {name: {part: by_column[f"{part}_ns"][name] for part in PARTS} for name in names}


def parts_in_percent(divided: pl.DataFrame, whole: str) -> dict[str, float]:
    """Return {part: percent of a column over all steps, mean over ranks}."""
    return {part: mean_of(shares_by_rank(divided, f"{part}_ns", whole), "pct") for part in PARTS}


def hidden_parts(
    breakdown: pl.DataFrame, communication_parts: pl.DataFrame | None, steps: pl.DataFrame
) -> dict[str, dict[str, float]]:
    """Return the detail {part: percent of its time that compute hides, mean over ranks that have it}."""
    if communication_parts is None:
        return {}
    parts = of_steps(communication_parts, steps)
    both = [divided(breakdown, parts, f"{name}_ns") for name in ("communication", "exposed_communication")]
    hidden_pct = {}
    for part in PARTS:
        hidden = both[0].with_columns(hidden_ns=pl.col(f"{part}_ns") - both[1][f"{part}_ns"])
        shares = shares_by_rank(hidden, "hidden_ns", f"{part}_ns")
        if shares.height:
            hidden_pct[part] = mean_of(shares, "pct")
    return {"hidden_pct_of_part": hidden_pct}


def parts_by(table: pl.DataFrame, steps: pl.DataFrame, key: str, column: str) -> dict[str, dict[str, float]]:
    """Return {value of `key`: {part: a column in a step, mean over ranks, s}}, without empty parts."""
    parts: dict[str, dict[str, float]] = {}
    rows = of_steps(table, steps)
    counted = keep_rows(rows, rows[column] > 0)
    for (name, part), value in seconds_by_keys(counted, steps, [key, "part"], column).items():
        parts.setdefault(name, {})[part] = value
    return {name: {part: parts[name].get(part, 0.0) for part in PARTS} for name in sorted(parts)}


MUCH_ELSEWHERE = 0.05
"""Share of the step from which waiting that a number leaves out is a finding.

Below it the number and the time that ranks wait differ by less than two sources of the length of a step may
differ before that is a finding, `step-times-differ`.
"""


def with_waiting_elsewhere(
    measurement: Measurement, other_waits: pl.DataFrame | None, steps: pl.DataFrame
) -> Measurement:
    """Return a number of stragglers with the exposed waiting that it leaves out, and a finding if it is much.

    The detail `waiting_elsewhere_s` is {collective: waiting in a step, mean over ranks, s}.
    """
    if other_waits is None or other_waits.is_empty():
        return measurement
    by_collective = seconds_by(of_steps(other_waits, steps), steps, "collective", "wait_ns")
    elsewhere = dict(sorted(by_collective.items(), key=lambda each: -each[1]))
    details = {**measurement.details, "waiting_elsewhere_s": elsewhere}
    return replace(measurement, details=details, findings=elsewhere_findings(elsewhere, steps))


def elsewhere_findings(by_collective: Mapping[str, float], steps: pl.DataFrame) -> list[Finding]:
    """Return the finding about waiting that stragglers leave out, if it is much of the step."""
    share = sum(by_collective.values()) / (mean_of(steps, "length_ns") / SECOND_NS)
    if share < MUCH_ELSEWHERE:
        return []
    listed = ", ".join(f"{name} {1000 * wait:.3g} ms" for name, wait in by_collective.items())
    message = (
        f"ranks wait another {100 * share:.3g} % of the step in calls that this number leaves out, because "
        f"their durations show no waiting: {listed} a step, mean over ranks"
    )
    return [Finding("waiting-elsewhere", "warning", message, touches=("waits",))]
