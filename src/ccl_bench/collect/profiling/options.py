"""What a recording was asked to do, checked before the first step."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.collect.profiling.schedule import Schedule
from ccl_bench.collect.profiling.turns import WRITERS
from ccl_bench.errors import UsageError
from ccl_bench.registry import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTPUT_VARIABLE = "CCL_BENCH_OUTPUT"
MODE_VARIABLE = "CCL_BENCH_PROFILE_MODE"

EXECUTION_TRACES = ("apart", "together", "off")
MODES = ("torch", "nsys")

METADATA = (
    "global_batch_size",
    "seq_len",
    "tokens_per_step",
    "model_flops_per_token",
    "gpu_peak_tflops",
    "gpu_hbm_bytes",
)
"""Numbers that `run_metadata.json` takes from a program; the number of ranks is counted."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a recording was asked to do."""

    output: Path
    schedule: Schedule = field(default_factory=Schedule)
    execution_trace: str = "apart"
    memory: bool | None = None
    compress: bool = False
    writers_per_node: int = WRITERS
    metadata: Mapping[str, float] = field(default_factory=dict)
    profile_mode: str = "torch"


def checked(
    output: str | os.PathLike[str] | None,
    schedule: Schedule | None,
    execution_trace: str,
    memory: bool | None,
    compress: bool,
    writers_per_node: int | None,
    metadata: Mapping[str, float] | None,
) -> Options:
    """Return options that can be followed, or raise UsageError."""
    place = output or os.environ.get(OUTPUT_VARIABLE)
    if not place:
        raise UsageError(
            "profile() was not told where to write",
            fix='name a directory, profile("runs/first"), or start the program by `ccl-bench collect`',
        )
    if execution_trace not in EXECUTION_TRACES:
        raise UsageError(
            f"execution_trace = {execution_trace!r} is not known",
            fix=f"one of: {', '.join(EXECUTION_TRACES)}",
        )
    for name in metadata or {}:
        if name not in METADATA:
            raise UsageError(
                f"run_metadata.json has no {name}",
                fix=did_you_mean(name, METADATA) or f"known: {', '.join(METADATA)}",
            )
    writers = WRITERS if writers_per_node is None else writers_per_node
    if writers < 1:
        raise UsageError(f"writers_per_node = {writers} lets nobody write", fix="give 1 or more")
    mode = os.environ.get(MODE_VARIABLE, "torch")
    return Options(
        Path(place).absolute(),
        schedule or Schedule(),
        execution_trace,
        memory,
        compress,
        writers,
        dict(metadata or {}),
        mode if mode in MODES else "torch",
    )
