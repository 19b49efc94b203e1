"""The options of a recording: the arguments of `profile()`, and what the environment adds."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.collect.profiling.ranks import BARRIER_TIMEOUT_S, parse_ranks
from ccl_bench.collect.profiling.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTPUT_VARIABLE = "CCL_BENCH_OUTPUT"
MODE_VARIABLE = "CCL_BENCH_PROFILE_MODE"
STEPS_VARIABLE = "CCL_BENCH_STEPS"
"""Steps to record, such as `15-19`, if the program states none."""
RANKS_VARIABLE = "CCL_BENCH_RANKS"
"""Ranks that write traces, such as `0,8,16`; the others only time their steps."""

WRITERS_PER_NODE = 4
"""Number of ranks of a node that write at once by default."""

EXECUTION_TRACES = ("apart", "together", "off")
MODES = ("torch", "nsys")

METADATA_NUMBERS = (
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
    """The checked arguments of `profile()`."""

    output: Path
    schedule: Schedule = field(default_factory=Schedule)
    execution_trace: str = "apart"
    memory: bool | None = None
    compress: bool = False
    writers_per_node: int = WRITERS_PER_NODE
    metadata: Mapping[str, float] = field(default_factory=dict)
    profile_mode: str = "torch"
    traced_ranks: tuple[int, ...] | None = None
    """Ranks that write traces; None for all. The others only time their steps."""
    patience_s: float = BARRIER_TIMEOUT_S
    """Longest time that a rank waits for the others."""


def check_options(
    output: str | os.PathLike[str] | None = None,
    schedule: Schedule | None = None,
    execution_trace: str = "apart",
    memory: bool | None = None,
    compress: bool = False,
    writers_per_node: int | None = None,
    metadata: Mapping[str, float] | None = None,
) -> Options:
    """Return the options, or raise UsageError for an invalid one."""
    folder = output or os.environ.get(OUTPUT_VARIABLE)
    if not folder:
        raise UsageError(
            "profile() has no directory to write to",
            fix='give a directory, profile("runs/first"), or start the program with `ccl-bench collect`',
        )
    if execution_trace not in EXECUTION_TRACES:
        raise UsageError(
            f"execution_trace = {execution_trace!r} is unknown",
            fix=f"one of: {', '.join(EXECUTION_TRACES)}",
        )
    for name in metadata or {}:
        if name not in METADATA_NUMBERS:
            raise UsageError(
                f"run_metadata.json has no field {name}",
                fix=did_you_mean(name, METADATA_NUMBERS) or f"known: {', '.join(METADATA_NUMBERS)}",
            )
    writers = WRITERS_PER_NODE if writers_per_node is None else writers_per_node
    if writers < 1:
        raise UsageError(f"with writers_per_node = {writers} no rank could write", fix="give 1 or more")
    mode = os.environ.get(MODE_VARIABLE, "torch")
    steps, ranks_named = os.environ.get(STEPS_VARIABLE), os.environ.get(RANKS_VARIABLE)
    return Options(
        Path(folder).absolute(),
        schedule or (Schedule.of_steps(steps) if steps else Schedule()),
        execution_trace,
        memory,
        compress,
        writers,
        dict(metadata or {}),
        mode if mode in MODES else "torch",
        parse_ranks(ranks_named) if ranks_named else None,
    )
