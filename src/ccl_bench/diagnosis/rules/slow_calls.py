"""The rule `slow_calls`: collectives that are slower than the same ones at other times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.communication import of_rows, pace, transfers, with_transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.metrics.shared.reference import References
    from ccl_bench.result.diagnosis import Opportunity

_SLOWER = 1.5
"""Time over the median of its kind from which a call is slow: undisturbed calls vary by less."""

_FEWEST = 5
"""Smallest number of calls of a kind on a rank for a typical time: of four, two slow ones would move it."""


@diagnosis(kind="communication")
def slow_calls(
    gains: Gains, calls: pl.DataFrame, groups: pl.DataFrame, references: References
) -> Iterator[Opportunity]:
    """Some collectives take far longer than the same collective, of the same size and group, at other times.

    How it is seen:
    Calls of one group, collective and size are compared from the arrival of their last
    rank. The run is replayed with the median for calls that take more than 1.5 times as long. If the catalog
    or nccl-tests has a measurement of them, the sentence reports their speed relative to it.

    Why it costs:
    Other calls show that the bandwidth is available, but these do not reach it: another job
    uses the link, or the kernel gets too few multiprocessors.

    What to do:
    Check which work runs concurrently with the slow calls. Concurrent collectives of several
    groups share links: run them one after the other. Computing that fills the device leaves NCCL few
    multiprocessors: NCCL_MIN_CTAS, CUDA_DEVICE_MAX_CONNECTIONS=1 in Megatron, a stream of high priority
    (torch: is_high_priority_stream). On a shared network look for other jobs.

    When it is no problem:
    If they are slow because they are hidden behind computing, the replay gains
    nothing and the rule reports nothing.

    Reference:
    nccl-tests, PERFORMANCE.md: bus bandwidth
    """
    kind = ["trace", "group", "dimension", "collective", "size_bytes"]
    repeated_calls = (
        transfers(gains, calls)
        .with_columns(usual=pl.col("took").median().over(kind))
        .filter(pl.len().over(kind) >= _FEWEST)
    )
    if repeated_calls.is_empty():
        raise Silent("no collective of a known size is repeated often enough")
    slow = repeated_calls.filter((pl.col("took") > _SLOWER * pl.col("usual")) & (pl.col("usual") > 0)).sort(
        "row"
    )
    if slow.is_empty():
        return
    mask = of_rows(gains, slow["row"])
    share = 100 * len(slow) / len(repeated_calls)
    which = slow["collective"].mode().sort()[0]
    yield from gains.sure(
        with_transfer(gains, mask, slow["usual"].to_numpy()),
        title=f"{share:.0f} % of the collectives, mostly {which}, take over 1.5 times their usual time"
        f"{pace(slow, groups, references)}",
        remedy="check concurrent work: other collectives, large kernels, other jobs",
        change="they take their usual time",
    )
