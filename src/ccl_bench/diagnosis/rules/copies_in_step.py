"""The rule `copies_in_step`: copies delay the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.communication import without_transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity

_WORTH = 0.02
"""Share of the step that hiding all copies must gain."""


@diagnosis(kind="device")
def copies_in_step(gains: Gains) -> Iterator[Opportunity]:
    """Copies and memory sets hold up the step.

    How it is seen:
    The run is replayed with copies and memory sets of the device that take no time. The gain is the most that
    hiding them can bring.

    Why it costs:
    Computing waits for data that is copied late or slowly. Pageable memory is copied through a buffer of the
    driver, at a fraction of the bandwidth, and blocks the host.

    What to do:
    Pinned memory and non_blocking=True (DataLoader(pin_memory=True)), the next batch copied on its own stream
    while this one computes. DeepSpeed: offload_optimizer and offload_param with pin_memory=true.
    FSDP2: CPUOffloadPolicy(pin_memory=True). vLLM: --swap-space and --cpu-offload-gb move weights and
    caches.

    When it is no problem:
    Copies that overlap with compute cost nothing; the replay shows this, and the
    rule reports nothing.

    Reference:
    CUDA C++ Best Practices Guide, section 10.1: data transfer between host and device
    """
    if not gains.has_device:
        raise Silent("the traces show no work on a device")
    copies = gains.where((pl.col("place") == "device") & (pl.col("kind") == "memory"))
    variant = without_transfer(gains, copies)
    (gain,) = gains.of(variant)
    if gain.is_sure and gain.share > _WORTH:
        yield gains.opportunity(
            gain,
            variant,
            title="Copies and memory sets hold up the step",
            remedy="copy from pinned memory on a separate stream, one batch ahead",
            change="they take no time, as if they were hidden",
        )
