"""The rule `copies_in_step`: copies delay the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.communication import of_rows, without_transfer
from ccl_bench.diagnosis.verdict import on_common_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity

_WORTH = 0.02
"""Share of the step that copies between host and device must gain: all of it can be hidden."""

_WORTH_ON_DEVICE = 0.05
"""The same for copies and sets inside a device, which are work like that of kernels.

Nothing hides them, and no program does without: optimizers, caches and changes of layout take 2.1 to 2.4 % of
a step in which nothing can be gained.
"""


@dataclass(frozen=True)
class _Direction:
    """What to say of copies in one direction."""

    title: str
    remedy: str
    worth: float = _WORTH_ON_DEVICE


_TO_DEVICE, _TO_HOST = "HtoD", "DtoH"

_DIRECTIONS = {
    _TO_DEVICE: _Direction(
        "Copies to the device hold up the step",
        "copy on a separate stream with non_blocking=True, one batch ahead",
        _WORTH,
    ),
    _TO_HOST: _Direction(
        "Copies to the host hold up the step",
        "copy on a separate stream with non_blocking=True, and read the values a step later",
        _WORTH,
    ),
    "DtoD": _Direction(
        "Copies inside the device take part of the step",
        "avoid contiguous(), clone() and cat, write into preallocated tensors, use fused optimizers",
    ),
    "PtoP": _Direction(
        "Copies between devices hold up the step",
        "keep tensors on the device that uses them, or copy them on a separate stream, ahead of their use",
    ),
    "memset": _Direction(
        "Memory sets take part of the step",
        "zero_grad(set_to_none=True), torch.empty instead of torch.zeros where all is overwritten",
    ),
    "other": _Direction(
        "Copies in an unknown direction hold up the step",
        "record with torch.profiler or Nsight Systems, which show the direction of each copy",
    ),
}
"""Kind of `memcpy` → what to say. A copy from host to host is none of a device."""

_PAGEABLE = {
    _TO_DEVICE: _Direction(
        "Copies of pageable memory to the device hold up the step",
        "pin_memory=True in the DataLoader, non_blocking=True, one batch ahead",
        _WORTH,
    ),
    _TO_HOST: _Direction(
        "Copies to pageable memory of the host hold up the step",
        "copy into pinned tensors with non_blocking=True, and read the values a step later",
        _WORTH,
    ),
}
"""The same where most of the time is that of pageable memory."""


@diagnosis(kind="device")
def copies_in_step(gains: Gains, memcpy: pl.DataFrame, clock_offsets: pl.DataFrame) -> Iterator[Opportunity]:
    """Copies or memory sets in one direction hold up the step.

    How it is seen:
    The run is replayed without the time of all copies in one direction: to the device, to the host, inside a
    device, between devices, and without memory sets. The gain is the most that avoiding or hiding them can
    bring. Copies and sets inside a device are reported above 5 % of the step, all others above 2 %.

    Why it costs:
    Computing waits for data that is copied late or slowly. Pageable memory is copied through a buffer of the
    driver, at a fraction of the bandwidth, and blocks the host. A copy inside a device takes its memory
    bandwidth from kernels: it cannot be hidden, only avoided.

    What to do:
    To the device: pinned memory and non_blocking=True (DataLoader(pin_memory=True)), the next batch copied on
    its own stream while this one computes. DeepSpeed: offload_optimizer and offload_param with
    pin_memory=true. FSDP2: CPUOffloadPolicy(pin_memory=True). vLLM: --swap-space and --cpu-offload-gb move
    weights and caches. To the host: pinned tensors, and values that are read a step later. Inside the device:
    fewer contiguous(), clone() and torch.cat, out= and in-place operators, AdamW(fused=True), torch.compile.
    Memory sets: zero_grad(set_to_none=True), torch.empty for what is overwritten.

    When it is no problem:
    Copies that overlap with compute cost nothing; the replay shows this, and the
    rule reports nothing.

    Reference:
    CUDA C++ Best Practices Guide, section 10.1: data transfer between host and device
    """
    if not gains.has_device:
        raise Silent("the traces show no work on a device")
    place = ["trace", "lane", "start_ns", "end_ns"]
    recorded = on_common_clock(memcpy, clock_offsets).rename({"stream": "lane", "kind": "direction"})
    directions = recorded.select(*place, "direction", "is_pageable").unique(place)
    copies = gains.operations.filter(pl.col("place") == "device", pl.col("kind") == "memory").join(
        directions, on=place, how="left", nulls_equal=True, maintain_order="left"
    )
    of_kinds = {
        kind: some
        for kind in _DIRECTIONS
        if (some := copies.filter(pl.col("direction").fill_null("other") == kind)).height
    }
    if not of_kinds:
        raise Silent("the traces show no copies")
    variants = [without_transfer(gains, of_rows(gains, each["row"])) for each in of_kinds.values()]
    for (kind, each), variant, gain in zip(of_kinds.items(), variants, gains.of(*variants), strict=True):
        took = each["end_ns"] - each["start_ns"]
        pageable = took.filter(each["is_pageable"].fill_null(value=False))
        is_pageable = kind in _PAGEABLE and 2 * pageable.sum() > took.sum()
        direction = _PAGEABLE[kind] if is_pageable else _DIRECTIONS[kind]
        if gain.is_sure and gain.share > direction.worth:
            change = "they take no time, as if they were hidden or avoided"
            yield gains.opportunity(
                gain, variant, title=direction.title, remedy=direction.remedy, change=change
            )
