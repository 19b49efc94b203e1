"""Communication that nothing hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics import metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.checks import need_communication
from ccl_bench.metrics.shared.per_step import mean_of, seconds, shares_by_rank, time_per_step

if TYPE_CHECKING:
    from ccl_bench.metrics import Measurement


@metric(unit="s", better="lower", applies=(checks.several_ranks,), revision=3)
def exposed_communication_time(
    breakdown: pl.DataFrame, exposed_calls: pl.DataFrame, steps: pl.DataFrame
) -> Measurement:
    """Time in one step in which a GPU communicated and did not compute.

    Formula:
        exposed_communication_time = |U(communication) - U(compute)| in a step, mean over steps and ranks

    Caveats:
        Waiting for a late peer is in it, and so is communication that nothing waits for. Copies that
        run meanwhile do not count as hiding it. In the details by collective, time in which several
        calls ran is that of the one that started first, so that they add up.

    Reference:
        `exposed_comm_time` of AMD TraceLens, clipped to steps.
    """
    need_communication(breakdown)
    details = {
        "per_collective_s": _by_collective(exposed_calls, steps),
        "pct_of_step": mean_of(shares_by_rank(breakdown, "exposed_communication_ns", "window_ns"), "pct"),
        "pct_of_communication": mean_of(
            shares_by_rank(breakdown, "exposed_communication_ns", "communication_ns"), "pct"
        ),
    }
    return time_per_step(breakdown, steps, "exposed_communication_ns", details)


def _by_collective(exposed_calls: pl.DataFrame, steps: pl.DataFrame) -> dict[str, float]:
    """Return {collective: exposed time in a step, mean over ranks, s}; it adds up to the whole."""
    lengths = exposed_calls.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("exposed_ns"))
    kinds = lengths["collective"].unique().sort()
    return {
        kind: seconds(lengths.filter(pl.col("collective") == kind), steps, "exposed_ns") for kind in kinds
    }
