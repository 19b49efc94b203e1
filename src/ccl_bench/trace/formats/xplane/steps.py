"""The steps that a device's plane shows itself: its own line of them, or the runs of its main program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.trace.device_steps import Steps, numbered_steps, runs_together, tile_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.trace.formats.xplane.operations import Operations
    from ccl_bench.trace.formats.xplane.space import Plane
    from ccl_bench.trace.hlo.program import Program
    from ccl_bench.trace.protobuf import Numbers


def line_steps(plane: Plane, name: str, base_ns: int) -> Steps:
    """Return the steps that a line of a device's plane holds; its events are named by their numbers."""
    for line in plane.lines:
        if line.name == name and line.count:
            starts, ends = (times.tolist() for times in line.times(base_ns))
            return numbered_steps([each.name.strip() for each in line.names()], starts, ends)
    return Steps([], "")


def work_as_steps(work: Operations, programs: Mapping[int, Program]) -> Steps:
    """Return the runs of the program that begins a step, where only the instructions are known."""
    lengths = np.bincount(work.kind, weights=work.end_ns - work.start_ns, minlength=len(work.kinds))
    totals: dict[int, float] = {}
    for kind, length in zip(work.kinds, lengths.tolist(), strict=True):
        known = _UNKNOWN if kind.program is None else kind.program
        totals[known] = totals.get(known, 0.0) + length
    begins = {number: _begins(work, number, programs[number]) for number in totals if number in programs}
    own = runs_together(totals, begins)
    if not own:
        return Steps([], "")
    of_these = [place for place, kind in enumerate(work.kinds) if kind.program in own]
    last_ns = int(work.end_ns[np.isin(work.kind, of_these)].max())
    return tile_steps(programs[own[0]].name, begins[own[0]], last_ns)


_UNKNOWN = -1
"""Stands for the program of work that is of none."""


def _begins(work: Operations, number: int, program: Program) -> Numbers:
    """Return when the runs of a program began.

    A run executes each instruction of the program's entry once. What is run as often as most of these are
    begins a run with the first of them, so that a lost record costs no step.
    """
    counts = np.bincount(work.kind, minlength=len(work.kinds))
    of_entry = [
        place
        for place, kind in enumerate(work.kinds)
        if kind.program == number and counts[place] and kind.instruction
        if kind.instruction.name in program.entry
    ]
    times = Counter(int(counts[place]) for place in of_entry)
    usual = [place for place in of_entry if counts[place] == max(times, key=lambda n: (times[n], -n))]
    first = work.kind[np.isin(work.kind, usual)][:1]
    return work.start_ns[np.isin(work.kind, first)]
