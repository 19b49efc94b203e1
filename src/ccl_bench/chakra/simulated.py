"""The output of ASTRA-sim: when each rank has finished, by its own statistics.

The lines are those of astra-sim, workload/Workload.cc and workload/Statistics.cc:

    [workload] [info] sys[0] finished, 64440 cycles, exposed communication 64440 cycles.
    [statistics] [info] sys[0], Comm time: 64440

A cycle of the analytical network is 1 ns (system/Sys.hh).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.text import ranks_do

if TYPE_CHECKING:
    from collections.abc import Mapping

_FINISHED = re.compile(
    r"sys\[(\d{1,9})\] finished, (\d{1,18}) cycles(?:, exposed communication (\d{1,18}) cycles\.)?$"
)
_OTHER_END = re.compile(r"sys\[.*\] .*finished|\bfinished, .*cycles")
_STATISTIC = re.compile(r"sys\[(\d{1,9})\], ([A-Z][\w -]*): (\d{1,18})$")

_LONGEST_LINE = 10_000
"""Characters of a line that are read; lines of ASTRA-sim are far shorter."""

_AGAIN = "give the whole output of one simulation, as `sh run.sh | tee result.txt` keeps it"


@dataclass(frozen=True, slots=True)
class SimulatedRank:
    """What ASTRA-sim reports of one rank."""

    cycles: int
    """When it had finished, cycles of 1 ns."""
    exposed_cycles: int | None
    """Time without work, which ASTRA-sim calls exposed communication; None in old output."""
    statistics: Mapping[str, int] = field(default_factory=dict)
    """Title → cycles, such as `Comm time`."""


def read_result(place: str, ranks: int) -> dict[int, SimulatedRank]:
    """Return what ASTRA-sim reports of each rank, in order.

    Raises InputError with the place if the output is not that of one finished simulation of `ranks` ranks.
    """
    path = storage.to_path(place)
    ends: dict[int, tuple[int, int | None]] = {}
    statistics: dict[int, dict[str, int]] = defaultdict(dict)
    try:
        with storage.open_file(path) as stream:
            for number, raw in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), 1):
                line, where = raw.decode("utf-8", "replace").rstrip(), f"{path}:{number}"
                if end := _FINISHED.search(line):
                    rank, cycles = int(end[1]), int(end[2])
                    if rank in ends:
                        raise InputError(f"rank {rank} finishes a second time", where=where, fix=_AGAIN)
                    if rank >= ranks:
                        message = f"rank {rank} finishes, but the run has {ranks} ranks"
                        fix = "give the run that the simulated folder was written from"
                        raise InputError(message, where=where, fix=fix)
                    if not cycles:
                        fix = "check that the workload of this rank holds nodes, and simulate again"
                        raise InputError(f"rank {rank} finishes after 0 cycles", where=where, fix=fix)
                    ends[rank] = cycles, None if end[3] is None else int(end[3])
                elif statistic := _STATISTIC.search(line):
                    statistics[int(statistic[1])][statistic[2]] = int(statistic[3])
                elif _OTHER_END.search(line):
                    message = "is no line of ASTRA-sim, such as `sys[0] finished, 64440 cycles`"
                    raise InputError(message, where=where, fix=_AGAIN)
    except OSError as error:
        raise storage.unreadable(path, error) from error
    if not ends:
        message = "holds no line of ASTRA-sim, such as `sys[0] finished, 64440 cycles`"
        raise InputError(message, where=str(path), fix=_AGAIN)
    if missing := sorted({*range(ranks)} - {*ends}):
        message = f"{ranks_do(missing, 'has', 'have')} not finished, of {ranks} ranks"
        fix = (
            "simulate to the end; a simulation that ends early has ranks that wait for each other: "
            "look for an error before the last line"
        )
        raise InputError(message, where=str(path), fix=fix)
    return {rank: SimulatedRank(*ends[rank], statistics.get(rank, {})) for rank in sorted(ends)}
