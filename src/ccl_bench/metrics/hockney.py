"""The metrics `hockney_alpha` and `hockney_beta`: latency and inverse bandwidth in one fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ccl_bench.analysis.communication.bandwidth import WAIT_FREE, HockneyFit, fit_hockney
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.other_sources import RECORDS, inspector_finding
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS


def _fit(transfers: pl.DataFrame) -> HockneyFit | None:
    seconds = (transfers["time_ns"] / SECOND_NS).to_list()
    return fit_hockney(transfers["size_bytes"].to_list(), seconds)


def _overall(transfers: pl.DataFrame) -> tuple[HockneyFit, list[dict[str, Any]]]:
    """Return the fit over all wait-free collectives, and the valid fits of each collective and group."""
    free = transfers.filter(pl.col("basis") == WAIT_FREE)
    whole = _fit(free)
    if whole is None:
        raise NotMeasurable(
            "the matched collectives have fewer than two message sizes",
            fix="record steps with calls of several sizes"
            if free.height
            else "record sizes and groups of collectives: torch 2.2 or later",
            causes=() if free.height else checks.UNSIZED,
        )
    if whole.doubt:
        raise NotMeasurable(
            f"{whole.doubt}: the model does not hold",
            fix="look at the bandwidths by message size: bandwidth_utilization_allreduce and the like",
        )
    parts = []
    for (collective, dimension, size), rows in free.group_by(
        "collective", "dimension", "size", maintain_order=True
    ):
        fit = _fit(rows)
        if fit and not fit.doubt:
            parts.append(
                {
                    "collective": collective,
                    "dimension": dimension,
                    "group_size": size,
                    "alpha_s": fit.alpha_s,
                    "beta_s_per_byte": fit.beta_s_per_byte,
                    "r_squared_ratio": fit.r_squared,
                    "calls_count": fit.points,
                }
            )
    parts.sort(key=lambda part: (str(part["collective"]), str(part["dimension"]), part["group_size"] or 0))
    return whole, parts


def _details(fit: HockneyFit, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "alpha_s": fit.alpha_s,
        "beta_s_per_byte": fit.beta_s_per_byte,
        "r_squared_ratio": fit.r_squared,
        "calls_count": fit.points,
        "message_sizes_count": fit.sizes,
        "by_collective": parts,
    }


def _alpha_of_records(recorded_transfers: pl.DataFrame) -> Measurement:
    fit, parts = _overall(recorded_transfers)
    alpha = Measurement(fit.alpha_s, _details(fit, parts), window=RECORDS)
    return replace(alpha, findings=[inspector_finding()])


def _beta_of_records(recorded_transfers: pl.DataFrame) -> Measurement:
    fit, parts = _overall(recorded_transfers)
    beta = Measurement(fit.beta_s_per_byte, _details(fit, parts), window=RECORDS)
    return replace(beta, findings=[inspector_finding()])


@metric(
    unit="s",
    better="lower",
    applies=(checks.several_ranks,),
    aliases=("hockney_alpha_s",),
    revision=3,
    otherwise=(_alpha_of_records,),
)
def hockney_alpha(transfers: pl.DataFrame) -> Measurement:
    """Latency of communication: the time of an empty message in the Hockney model.

    Formula:
        t = hockney_alpha + hockney_beta * S, least squares over matched, wait-free collectives

    Caveats:
        There is no value, and none of `hockney_beta`, if the line explains less than half of the variance
        (R squared), has a negative slope, or gives a negative latency. One line over different collectives
        and groups fits badly; the details list each line that fits. Only calls in steps are used.

    Reference:
        R. Hockney, The communication challenge for MPP, Parallel Computing 20(3), 1994.
    """
    fit, parts = _overall(transfers)
    return Measurement(fit.alpha_s, _details(fit, parts), window=CALLS_OF_STEPS)


@metric(
    unit="s/byte",
    better="lower",
    applies=(checks.several_ranks,),
    aliases=("hockney_beta_s_per_byte",),
    revision=3,
    otherwise=(_beta_of_records,),
)
def hockney_beta(transfers: pl.DataFrame) -> Measurement:
    """Inverse bandwidth of communication: the time of each further byte in the Hockney model.

    Formula:
        t = hockney_alpha + hockney_beta * S, least squares over matched, wait-free collectives

    Caveats:
        It comes from the same fit as `hockney_alpha`, and has no value where that has none. S is the
        message as nccl-tests counts it, so 1 / beta is an algorithm bandwidth, not a bus bandwidth.

    Reference:
        R. Hockney, The communication challenge for MPP, Parallel Computing 20(3), 1994.
    """
    fit, parts = _overall(transfers)
    return Measurement(fit.beta_s_per_byte, _details(fit, parts), window=CALLS_OF_STEPS)
