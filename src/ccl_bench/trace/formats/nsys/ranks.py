"""Which rank a recorded process is, where the report says so; the order of processes says nothing.

- `MPI_RANKS`, and the thread name `MPI Rank N` that older versions give by NVTX.
- The environment of the recorded command, where every rank has a report of its own. The variables
  of a launcher that starts ranks come before Slurm's, which a rank also inherits from a shell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.trace.formats.nsys.database import Database

THREAD_NAME = 39
"""`eventType` of an NVTX thread name."""

THREAD_BITS = 24
THREAD = (1 << THREAD_BITS) - 1
"""Part of a `globalTid` that is the thread."""

_MPI_RANK = re.compile(r"\AMPI Rank (\d{1,7})\Z")

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", ""),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables that give a rank, each with the one that gives the number of ranks."""

_SETTING = re.compile(r'(?:\A|[;\0])([A-Z0-9_]+)="?(\d{1,7})"?(?=[;\0]|\Z)')


class Place(NamedTuple):
    """A rank and the number of ranks, each None where it is not known."""

    rank: int | None = None
    world_size: int | None = None


def process_of(global_tid: int) -> int:
    """Return the `globalPid` in a `globalTid`."""
    return global_tid >> THREAD_BITS << THREAD_BITS


def recorded_ranks(database: Database) -> dict[int, int]:
    """Return `globalPid` → rank for the processes whose rank was recorded."""
    found: dict[int, set[int]] = {}
    for thread, rank in (*_mpi_ranks(database), *_named_ranks(database)):
        found.setdefault(process_of(thread), set()).add(rank)
    return {process: ranks.pop() for process, ranks in found.items() if len(ranks) == 1}


def _mpi_ranks(database: Database) -> Iterator[tuple[int, int]]:
    ranks = database.frame("MPI_RANKS", {"globalTid": "integer", "rank": "integer"}).drop_nulls()
    yield from ((thread, rank) for thread, rank in ranks.iter_rows() if rank >= 0)


def _named_ranks(database: Database) -> Iterator[tuple[int, int]]:
    only = database.only("NVTX_EVENTS", "eventType", "{} = ?", THREAD_NAME)
    kinds = {"globalTid": "integer", "text": "text", "textId": "integer"}
    if not database.has("NVTX_EVENTS", "eventType", "globalTid"):
        return
    names = database.frame("NVTX_EVENTS", kinds, only)
    texts = names["text"].zip_with(names["text"].is_not_null(), database.strings(names["textId"]))
    for thread, text in zip(names["globalTid"], texts, strict=True):
        if thread is not None and (match := _MPI_RANK.match(text or "")):
            yield thread, int(match[1])


def place_in_environment(database: Database) -> Place:
    """Return rank and number of ranks from the environment of the command that was recorded.

    Nothing else of the environment is looked at: it holds secrets.
    """
    values = _environment(database)
    for name, size_name in _VARIABLES:
        rank, size = values.get(name), values.get(size_name)
        is_alone = name.startswith("SLURM") and (size or 0) < 2
        if rank is not None and (size is None or rank < size) and not is_alone:
            return Place(rank, size)
    return Place()


def _environment(database: Database) -> dict[str, int]:
    wanted = {name for pair in _VARIABLES for name in pair}
    kinds = {"name": "text", "value": "text"}
    found: dict[str, int] = {}
    for table, ending in (
        ("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment"),
        ("META_DATA_CAPTURE", ":ENVIRONMENT_VARIABLE"),
    ):
        for name, value in database.frame(table, kinds).drop_nulls().iter_rows():
            if name.endswith(ending):
                found |= {key: int(number) for key, number in _SETTING.findall(value) if key in wanted}
    return found
