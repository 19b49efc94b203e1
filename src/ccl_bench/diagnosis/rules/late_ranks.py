"""The rule `late_ranks`: ranks whose hosts arrive late at collectives and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import ranks_do
from ccl_bench.diagnosis import diagnosis
from ccl_bench.diagnosis.communication import slow_ranks
from ccl_bench.diagnosis.stalls import OUTSIDE, ranges_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains, Times
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="ranks")
def late_ranks(gains: Gains) -> Iterator[Opportunity]:
    """Some ranks reach collectives or messages late because their host takes longer than that of others.

    How it is seen:
    The ranks that arrive latest at collectives and messages are replayed with the host
    times of the other ranks: the median of the same operation at the same place in the step. The gain of an
    average rank is subtracted before the gain is compared with the noise.

    Why it costs:
    All members of a collective wait for the last one. One slow process sets the pace of all.

    What to do:
    Look at the range that the diagnosis names. Bind processes to the cores and the NUMA node of
    their device (torchrun --numa-binding node, numactl, srun --cpu-bind), give the data loader its own
    cores, and compare clock speed and other users of that machine. Megatron: --distributed-timeout-minutes
    does not help; --log-straggler names the rank, and so do [comm] trace_buf_size and the flight recorder
    of torchtitan.

    When it is no problem:
    The gain is small if other ranks are nearly as late. Pipeline stages differ by
    design: a rank is compared with the other ranks of its stage, if there are any.

    Reference:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25)
    """
    slow = slow_ranks(gains, gains.on_host)
    if slow is None:
        return
    where = _longest_range(gains, slow.ranks, slow.variant)
    title = (
        f"{ranks_do(slow.ranks, 'comes', 'come')} late: the host takes {slow.ratio:.1f} times as long as "
        f"on other ranks{where}"
    )
    yield gains.opportunity(
        slow.gain,
        slow.variant,
        title=title,
        remedy="check the host: binding to cores, data loading, other load on the machine",
        change="its host takes the same time as the hosts of other ranks",
        ranks=slow.ranks,
    )


def _longest_range(gains: Gains, ranks: tuple[int, ...], variant: Times) -> str:
    """Return in words the range with the largest saving; empty if the program has no ranges."""
    saved = gains.saved(variant).sum(axis=1)
    sums: dict[str, float] = {}
    traces = gains.operations.filter(pl.col("rank").is_in(ranks))["trace"].unique()
    for trace in traces.sort():
        for row, name in ranges_of_rows(gains.graph, trace).items():
            sums[name] = sums.get(name, 0.0) + float(saved[row])
    sums.pop(OUTSIDE, None)
    name, most = max(sums.items(), key=lambda item: item[1], default=("", 0.0))
    return f", most of it in {name}" if most > 0 else ""
