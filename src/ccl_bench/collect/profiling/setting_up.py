"""Which recorders a recording uses: as asked, and as this installation of torch can."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ccl_bench.collect.profiling.recorders import ExecutionTrace, MemoryHistory, NsightRanges, TorchProfiler
from ccl_bench.collect.profiling.schedule import Phase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccl_bench.collect.profiling.options import Options
    from ccl_bench.collect.profiling.recorders import Recorder

_ET, _SNAPSHOT = "et.json", "memory_snapshot.pickle"


def recorders(
    torch: Any, options: Options, file_of: Callable[[str, Phase, str], Path], export: Callable[..., None]
) -> tuple[list[Recorder], list[str]]:
    """Return the recorders, and what was asked for and is not possible here.

    Under Nsight Systems torch's own profiler stays off: CUDA's profiling interface admits one of them.
    """
    if options.profile_mode == "nsys":
        try:
            return [NsightRanges(torch)], []
        except ImportError:
            return [], [
                "steps are not marked for Nsight Systems: torch has no CUDA and nvtx is not installed"
            ]
    found: list[Recorder] = []
    schedule = options.schedule
    is_together = options.execution_trace == "together"
    if schedule.active:
        file = partial(file_of, "execution_trace", Phase.ACTIVE, _ET) if is_together else None
        found.append(TorchProfiler(torch, schedule, export, file))
    if not schedule.observed:
        return found, []
    if options.execution_trace == "apart":
        found.append(ExecutionTrace(torch, partial(file_of, "execution_trace", Phase.OBSERVED, _ET)))
    has_device = torch.cuda.is_available()
    if has_device and options.memory is not False:
        found.append(MemoryHistory(torch, partial(file_of, "memory_snapshot", Phase.OBSERVED, _SNAPSHOT)))
    refused = options.memory and not has_device
    return found, ["memory was not recorded: there is no CUDA device"] if refused else []
