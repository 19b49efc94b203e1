"""The rule `garbage_collection`: hosts collect garbage in the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.catalog.host_stalls import GARBAGE_COLLECTION
from ccl_bench.diagnosis import diagnosis
from ccl_bench.diagnosis.stalls import without_stalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.diagnosis.hosts import Hosts
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="host")
def garbage_collection(gains: Gains, hosts: Hosts) -> Iterator[Opportunity]:
    """Python collects garbage in the step, at other times on each rank.

    How it is seen:
    The run is replayed without the time that hosts spend in ranges named after garbage collection, such as
    gc.collect. Python's own collections have no range unless the program marks them (gc.callbacks with
    record_function): unmarked they are part of late_ranks.

    Why it costs:
    A collection stops the host for tens to hundreds of milliseconds. Ranks collect in
    different steps, so all ranks wait for every collection.

    What to do:
    Switch automatic collection off and collect on all ranks in the same steps: torchtitan training.gc_freq;
    Megatron --manual-gc --manual-gc-interval 100; else gc.disable() and gc.collect(1) every so many steps.
    gc.freeze() after start-up makes collections shorter.

    When it is no problem:
    If it runs while the device has work queued, the replay gains nothing and the
    rule reports nothing.

    Reference:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), section 5.4
    """
    yield from without_stalls(
        gains,
        hosts.stalls,
        kinds=[GARBAGE_COLLECTION],
        what="Python collects garbage in the step",
        remedy="collect on all ranks in the same steps (--manual-gc, training.gc_freq)",
    )
