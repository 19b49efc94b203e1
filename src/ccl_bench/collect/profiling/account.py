"""What one rank tells of its recording when it is over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ccl_bench.collect.profiling import place
from ccl_bench.collect.profiling.parts import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccl_bench.collect.profiling.clock import Clock
    from ccl_bench.collect.profiling.options import Options
    from ccl_bench.collect.profiling.schedule import Schedule

_LOG = logging.getLogger("ccl_bench.collect")
"""Goes to stderr as it is, unless the training says where its logging goes."""


def part_of(
    here: place.Place,
    options: Options,
    clock: Clock,
    *,
    steps: int,
    losses: Mapping[int, Any],
    tokens: int | None,
    memory: dict[str, int],
    remarks: Iterable[str],
) -> Part:
    """Return the account of a rank; waits for the device where steps are measured on it."""
    seconds: dict[str, dict[int, float]] = {}
    for step, length in clock.seconds().items():
        seconds.setdefault(str(options.schedule.phase(step)), {})[step] = length
    return Part(
        here.rank,
        here.world_size,
        seconds,
        {step: _number(loss) for step, loss in losses.items()},
        tokens,
        dict(options.metadata),
        memory,
        place.process(),
        {
            "schedule": options.schedule.as_numbers(),
            "profiler": options.profile_mode,
            "execution_trace": options.execution_trace,
            "clock": clock.name,
            "steps": steps,
            "remarks": list(remarks),
        },
    )


def _number(loss: Any) -> float:
    """Return a loss as a number; of a distributed tensor the local part, so that no collective starts."""
    return float(loss.to_local() if hasattr(loss, "to_local") else loss)


def memory_peaks(torch: Any) -> dict[str, int]:
    """Return the peaks of the allocator, empty where nothing was allocated on a device."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    return {
        "allocated_bytes.all.peak": torch.cuda.max_memory_allocated(),
        "reserved_bytes.all.peak": torch.cuda.max_memory_reserved(),
    }


def too_short(steps: int, schedule: Schedule) -> str:
    """Return what is said of a loop that ended before its recording."""
    begins = schedule.skip + schedule.timed + schedule.warmup
    what = "nothing was recorded" if steps <= begins else "the recording is not complete"
    return (
        f"the loop ended after {steps} steps of {schedule.length}, so that {what}; "
        f"run at least {schedule.length} steps, or give profile() a shorter Schedule"
    )


def warn(texts: Iterable[str]) -> None:
    """Say what went wrong, without ending a training."""
    for text in texts:
        _LOG.warning("ccl-bench: %s", text)
