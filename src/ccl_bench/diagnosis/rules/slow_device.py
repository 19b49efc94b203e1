"""The rule `slow_device`: ranks whose device takes longer for the same work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import ranks_do
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.communication import slow_ranks
from ccl_bench.diagnosis.experts import expert_loads, expert_work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="ranks")
def slow_device(gains: Gains, traffic: pl.DataFrame) -> Iterator[Opportunity]:
    """The same kernels take longer on the device of some ranks, and others wait for them.

    How it is seen:
    The ranks that arrive latest at collectives and messages are replayed with kernel times
    of the other ranks: the median of the same kernel at the same place in the step. The work of uneven
    experts is excluded.

    Why it costs:
    All members of a collective wait for the last one. One slow device sets the pace of all.

    What to do:
    Compare clocks, temperature and power limits (nvidia-smi -q -d CLOCK,PERFORMANCE,POWER; dcgmi diag -r 3),
    ECC retirements, and other jobs on the device. Replace or exclude a device that stays slow. If the rank
    has more work than the others, balance that: sequence lengths, experts, layers.

    When it is no problem:
    If the rank has more work by design, such as the last pipeline stage with the
    output layer. Ranks are compared within their stage, if it has several.

    Reference:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25)
    """
    if not gains.has_device:
        raise Silent("the traces show no work on a device")
    of_experts = expert_work(gains, expert_loads(traffic))
    slow = slow_ranks(gains, gains.computes & ~of_experts, gains.graph.values)
    if slow is None:
        return
    title = (
        f"{ranks_do(slow.ranks, 'computes', 'compute')} slowly: the same kernels take {slow.ratio:.2f} "
        "times as long as on other ranks"
    )
    yield gains.opportunity(
        slow.gain,
        slow.variant,
        title=title,
        remedy="compare clocks, temperature and power of the devices, and the work that ranks get",
        change="its kernels take the same time as on other ranks",
        ranks=slow.ranks,
    )
