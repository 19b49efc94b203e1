"""The metrics `collective_volume_*`: bytes of each kind of collective."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import GIGA
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.bandwidth_utilization import KINDS, need_kind, title_of
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.other_sources import WINDOW, calls_in_steps, moving, source_finding
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS, by_rank, ranks_in
from ccl_bench.metrics.traffic_distribution import RECORD_SIZES, bytes_by_rank, need_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

_MANUAL = """Message bytes of {title} that one GPU communicates in one step.

Formula:
    collective_volume = sum of message bytes / (ranks * steps) / 10^9, of Execution Traces where there
    are no others

Caveats:
    Messages as nccl-tests counts them, not bytes on the wire. A message between two ranks is counted on
    both. Calls without a recorded size are listed but not counted; if they are most of the calls of the
    kind, or of their time, there is no value.

Reference:
    nccl-tests doc/PERFORMANCE.md.
"""


_ALIASES = {kind: (f"collective_vol_{kind}_gb",) for kind in ("allreduce", "reducescatter")}


def _family(suffix: str, collectives: tuple[str, ...]) -> Callable[..., Measurement]:
    """Declare the metric of one kind of collective and return it."""

    def volume(traffic: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
        inside = traffic.join(steps, on=["trace", "step"], how="semi", maintain_order="left")
        return _volume(inside, steps, suffix, collectives)

    def of_execution_traces(et_traffic: pl.DataFrame, et_steps: pl.DataFrame) -> Measurement:
        inside = calls_in_steps(et_traffic)
        measurement = _volume(inside, et_steps, suffix, collectives)
        chosen = inside.filter(pl.col("collective").is_in(collectives))
        return replace(measurement, window=WINDOW, findings=[source_finding(et_steps, chosen)])

    volume.__name__ = f"collective_volume_{suffix}"
    volume.__doc__ = _MANUAL.format(title=title_of(suffix))
    declare = metric(
        unit="GB",
        better="neither",
        applies=(checks.several_ranks,),
        aliases=_ALIASES.get(suffix, ()),
        otherwise=(of_execution_traces,),
        revision=3,
    )
    return declare(volume)


for _suffix, _collectives in KINDS.items():
    _family(_suffix, _collectives)


def _volume(
    inside: pl.DataFrame, steps: pl.DataFrame, suffix: str, collectives: tuple[str, ...]
) -> Measurement:
    calls = inside.filter(pl.col("collective").is_in(collectives))
    need_kind(inside, suffix, steps)
    sized = calls.drop_nulls("size_bytes")
    if sized.is_empty():
        raise NotMeasurable(
            f"no step holds a call of {suffix} with a recorded size",
            fix=RECORD_SIZES,
            causes=("calls-without-size", "calls-unpaired"),
        )
    need_sizes(calls, suffix)
    count = steps.height
    per_dimension = sized.group_by("dimension").agg((pl.col("size_bytes").sum() / count / GIGA).alias("gb"))
    return Measurement(
        float(sized.select(pl.col("size_bytes").sum()).item()) / count / GIGA,
        details={
            "calls_per_gpu_and_step": calls.height / count,
            "mean_message_bytes": moving(sized)["size_bytes"].mean(),
            "per_rank_gb": by_rank(bytes_by_rank(calls, steps), "gb"),
            "per_dimension_gb": dict(per_dimension.sort("dimension").iter_rows()),
            "unattributed_calls_count": calls.height - sized.height,
        },
        window=CALLS_OF_STEPS,
        ranks=ranks_in(steps),
    )
