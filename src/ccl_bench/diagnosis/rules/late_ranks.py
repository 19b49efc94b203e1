"""The rule `late_ranks`: ranks whose hosts arrive late at collectives and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import ranks_do
from ccl_bench.diagnosis import diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.diagnosis.hosts import Hosts
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="ranks")
def late_ranks(gains: Gains, hosts: Hosts) -> Iterator[Opportunity]:
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
    slow = hosts.late
    if slow is None:
        return
    place = hosts.place_of(slow.variant)
    where = f", most of it in {place}" if place else ""
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
