"""The processes of a report that are ranks: each is a trace of its own.

A process is a rank if it used a device; in a report without device work, if it marked ranges. A process that
ran kernels on several devices is several traces, one for each device. Which rank it is, the report says by

- `MPI_RANKS`, or the thread name `MPI Rank N` that older versions give by NVTX;
- the environment of the recorded command, where every rank has a report of its own. The variables
  of a launcher that starts ranks come before Slurm's, which a rank also inherits from a shell.

The order of processes says nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.errors import InputError
from ccl_bench.trace.formats.nsys.database import complete_rows, open_database
from ccl_bench.trace.formats.nsys.export import export_of
from ccl_bench.trace.sqlite import EVERY_ROW, Filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ccl_bench.trace.sqlite import Database

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
    """A rank and the number of ranks, each None if unknown."""

    rank: int | None = None
    world_size: int | None = None


def process_of(global_tid: int) -> int:
    """Return the `globalPid` in a `globalTid`."""
    return global_tid >> THREAD_BITS << THREAD_BITS


def recorded_ranks(database: Database) -> dict[int, int]:
    """Return `globalPid` → rank for the processes whose rank was recorded."""
    by_process: dict[int, set[int]] = {}
    for thread, rank in (*_mpi_ranks(database), *_named_ranks(database)):
        by_process.setdefault(process_of(thread), set()).add(rank)
    return {process: ranks.pop() for process, ranks in by_process.items() if len(ranks) == 1}


def _mpi_ranks(database: Database) -> Iterator[tuple[int, int]]:
    ranks = database.frame("MPI_RANKS", {"globalTid": "integer", "rank": "integer"})
    yield from ((thread, rank) for thread, rank in complete_rows(ranks) if rank >= 0)


def _named_ranks(database: Database) -> Iterator[tuple[int, int]]:
    only = database.only("NVTX_EVENTS", "eventType", (THREAD_NAME, THREAD_NAME))
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
    names = {name for pair in _VARIABLES for name in pair}
    kinds = {"name": "text", "value": "text"}
    values: dict[str, int] = {}
    for table, ending in (
        ("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment"),
        ("META_DATA_CAPTURE", ":ENVIRONMENT_VARIABLE"),
    ):
        for name, value in complete_rows(database.frame(table, kinds)):
            if name.endswith(ending):
                values |= {key: int(number) for key, number in _SETTING.findall(value) if key in names}
    return values


RUNNING = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
MOVING = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
RANGES = ("NVTX_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_OTHER_EVENTS")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a report, or the work of one process on one of its devices."""

    id: str
    """What selects it, such as `pid145` or `pid145-device1`; empty for all that a report holds."""
    global_pid: int
    """Nsight Systems' number of the process, unique in a report."""
    pid: int
    """Process id of the operating system."""
    name: str
    """Name of the program; empty if not recorded."""
    devices: tuple[int, ...]
    """Devices whose work the trace holds, sorted; empty without device work."""
    rank: int | None = None
    """Rank, if the report says."""
    world_size: int | None = None
    """Number of ranks in the job, if the report says."""
    local_rank: int | None = None
    """Place in the order of devices, where every process of the report has one device of its own."""
    other_devices: tuple[int, ...] = ()
    """Devices of the same process whose work belongs to other traces."""


def rows_of(database: Database, table: str, process: Process) -> Filter:
    """Return the condition for the rows of one process, every row where there is a single process."""
    first = process.global_pid
    if not process.id:
        return EVERY_ROW
    if database.has(table, "globalPid"):
        return database.only(table, "globalPid", (first, first))
    return database.only(table, "globalTid", (first, first | THREAD))


def processes(path: Path) -> list[Process]:
    """Return the processes of a report or export that are ranks, in order of device and process id."""
    with open_database(export_of(path), str(path)) as database:
        return processes_in(database)


def select_process(database: Database, process: str | None) -> Process:
    """Return the process called `process`; the only one where no name is given."""
    candidates = processes_in(database)
    if process is None and len(candidates) <= 1:
        return candidates[0] if candidates else Process("", 0, 0, "", ())
    selected = next((candidate for candidate in candidates if candidate.id == process), None)
    if selected is None:
        ids = ", ".join(candidate.id for candidate in candidates) or "none"
        message = f"there is no process {process}" if process else "it holds several processes"
        raise InputError(message, where=database.name, fix=f"choose one of: {ids}")
    return selected


def processes_in(database: Database) -> list[Process]:
    """Return the processes of an open export that are ranks, in order of device and process id."""
    devices = _devices(database)
    owners = sorted(devices) or sorted(_owners_of_ranges(database))
    names, ranks = _names(database), recorded_ranks(database)
    candidates = [
        Process(
            id=f"pid{_pid(owner)}",
            global_pid=owner,
            pid=_pid(owner),
            name=names.get(owner, ""),
            devices=tuple(sorted(devices.get(owner, ()))),
            rank=ranks.get(owner),
        )
        for owner in owners
    ]
    return _ordered(
        part for process in _placed(_with_distinct_ids(candidates), database) for part in _by_device(process)
    )


def _pid(global_pid: int) -> int:
    return global_pid >> THREAD_BITS & THREAD


def _devices(database: Database) -> dict[int, set[int]]:
    """Return `globalPid` → devices with kernels, or with copies where a process ran no kernel."""
    by_process: dict[int, set[int]] = {}
    for tables in (RUNNING, MOVING):
        pairs = [pair for table in tables for pair in _pairs(database, table)]
        earlier = set(by_process)
        for process, device in pairs:
            if process not in earlier:
                by_process.setdefault(process, set()).add(device)
    return by_process


def _pairs(database: Database, table: str) -> list[tuple[int, int]]:
    rows = database.distinct(table, {"globalPid": "integer", "deviceId": "integer"})
    return [(process, device) for process, device in complete_rows(rows)]


def _owners_of_ranges(database: Database) -> set[int]:
    owners: set[int] = set()
    for table in RANGES:
        only = Filter(sql='"end" IS NOT NULL') if database.has(table, "end") else EVERY_ROW
        threads = database.distinct(table, {"globalTid": "integer"}, only)["globalTid"]
        owners |= {process_of(thread) for thread in threads if thread is not None}
    return owners


def _names(database: Database) -> dict[int, str]:
    return dict(complete_rows(database.frame("PROCESSES", {"globalPid": "integer", "name": "text"})))


def _with_distinct_ids(candidates: list[Process]) -> list[Process]:
    """Return the processes with ids that differ also if hosts share process ids."""
    shared_pids = {pid for pid, count in Counter(process.pid for process in candidates).items() if count > 1}
    return [
        replace(process, id=f"{process.id}-host{process.global_pid >> 2 * THREAD_BITS & 0xFFFF:x}")
        if process.pid in shared_pids
        else process
        for process in candidates
    ]


def _placed(candidates: list[Process], database: Database) -> list[Process]:
    """Return the processes with local ranks; a single one with the rank that the environment states.

    The environment is that of the recorded command: behind a launcher it is not the ranks' own.
    """
    if len(candidates) == 1 and len(candidates[0].devices) <= 1:
        rank, size = place_in_environment(database)
        recorded_rank = candidates[0].rank
        if recorded_rank in {None, rank}:
            return [
                replace(candidates[0], rank=rank if recorded_rank is None else recorded_rank, world_size=size)
            ]
        return candidates
    single = [process.devices[0] for process in candidates if len(process.devices) == 1]
    if len(single) < len(candidates) or len(set(single)) < len(candidates):
        return candidates
    order = sorted(single)
    return [replace(process, local_rank=order.index(process.devices[0])) for process in candidates]


def _by_device(process: Process) -> list[Process]:
    """Return one process for each device; a rank that belongs to several devices is not one's own."""
    if len(process.devices) <= 1:
        return [process]
    return [
        replace(
            process,
            id=f"{process.id}-device{device}",
            devices=(device,),
            other_devices=tuple(other for other in process.devices if other != device),
            rank=None,
        )
        for device in process.devices
    ]


def _ordered(candidates: Iterable[Process]) -> list[Process]:
    return sorted(candidates, key=lambda process: (process.devices, process.global_pid))
