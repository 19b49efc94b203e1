"""Kinds of side files, recognised by name first, then by content."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.side_files import experts, memory_stats, metadata, step_times, training_metrics
from ccl_bench.side_files.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.storage.files import Location


class SideFile(StrEnum):
    """Kinds of file that a run leaves beside its traces."""

    RUN_METADATA = "run_metadata"
    STEP_TIMES = "step_times"
    RANK_STEP_TIMES = "step_times_per_rank"
    TRAINING_METRICS = "training_metrics"
    MEMORY_STATS = "memory_stats"
    MOE_ASSIGNMENTS = "moe_assignments"


_NAMES = {
    metadata.FILE_NAME: SideFile.RUN_METADATA,
    **dict.fromkeys(step_times.FILE_NAMES, SideFile.STEP_TIMES),
    step_times.PER_RANK_FILE_NAME: SideFile.RANK_STEP_TIMES,
    training_metrics.FILE_NAME: SideFile.TRAINING_METRICS,
    **dict.fromkeys(memory_stats.MEMORY_FILE_NAMES, SideFile.MEMORY_STATS),
}
_SHAPES: dict[SideFile, Callable[[object], bool]] = {
    SideFile.RUN_METADATA: lambda data: isinstance(data, dict),
    SideFile.STEP_TIMES: step_times.is_step_times,
    SideFile.RANK_STEP_TIMES: step_times.is_rank_step_times,
    SideFile.TRAINING_METRICS: training_metrics.is_training_metrics,
    SideFile.MEMORY_STATS: memory_stats.is_memory_stats,
    SideFile.MOE_ASSIGNMENTS: experts.is_moe_assignments,
}


def side_file_named(name: str) -> SideFile | None:
    """Return the kind that a file's name stands for."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    return SideFile.MOE_ASSIGNMENTS if fnmatch(last, experts.MOE_FILE_PATTERN) else _NAMES.get(last)


def side_file(path: Location) -> SideFile | None:
    """Return the kind of a file whose name and content agree; never raises for what the file holds."""
    kind = side_file_named(str(path))
    if kind is None:
        return None
    try:
        data, _ = read_json(path)
    except InputError:
        return None
    return kind if _SHAPES[kind](data) else None
