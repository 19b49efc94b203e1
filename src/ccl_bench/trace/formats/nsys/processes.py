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
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.trace.formats.nsys.database import complete_rows, open_database
from ccl_bench.trace.formats.nsys.export import export_of
from ccl_bench.trace.sqlite import EVERY_ROW, Filter

if TYPE_CHECKING:
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


def process_of(global_tid: int) -> int:
    """Return the `globalPid` in a `globalTid`."""
    return global_tid >> THREAD_BITS << THREAD_BITS


def recorded_ranks(database: Database) -> dict[int, int]:
    """Return `globalPid` → rank for the processes whose rank was recorded."""
    recorded = database.frame("MPI_RANKS", {"globalTid": "integer", "rank": "integer"})
    pairs = [(thread, rank) for thread, rank in complete_rows(recorded) if rank >= 0]
    if database.has("NVTX_EVENTS", "eventType", "globalTid"):
        kinds = {"globalTid": "integer", "text": "text", "textId": "integer"}
        names = database.frame("NVTX_EVENTS", kinds, Filter("eventType", ((THREAD_NAME, THREAD_NAME),)))
        texts = names["text"].zip_with(names["text"].is_not_null(), database.strings(names["textId"]))
        for thread, text in zip(names["globalTid"], texts, strict=True):
            if thread is not None and (match := _MPI_RANK.match(text or "")):
                pairs.append((thread, int(match[1])))
    by_process: dict[int, set[int]] = {}
    for thread, rank in pairs:
        by_process.setdefault(process_of(thread), set()).add(rank)
    return {process: ranks.pop() for process, ranks in by_process.items() if len(ranks) == 1}


def place_in_environment(database: Database) -> tuple[int | None, int | None]:
    """Return rank and number of ranks from the environment of the command that was recorded.

    Nothing else of the environment is looked at: it holds secrets.
    """
    names = {name for pair in _VARIABLES for name in pair}
    values: dict[str, int] = {}
    for table, ending in (
        ("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment"),
        ("META_DATA_CAPTURE", ":ENVIRONMENT_VARIABLE"),
    ):
        for name, value in complete_rows(database.frame(table, {"name": "text", "value": "text"})):
            if name.endswith(ending):
                values |= {key: int(number) for key, number in _SETTING.findall(value) if key in names}
    for name, size_name in _VARIABLES:
        rank, size = values.get(name), values.get(size_name)
        is_alone = name.startswith("SLURM") and (size or 0) < 2
        if rank is not None and (size is None or rank < size) and not is_alone:
            return rank, size
    return None, None


RUNNING = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
MOVING = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
RANGES = ("NVTX_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_OTHER_EVENTS")


@dataclass(frozen=True, slots=True)
class ReportProcess:
    """One process of a report, or the work of one process on one of its devices."""

    id: str
    """What selects it, such as `pid145` or `pid145-device1`; empty for all that a report holds."""
    global_pid: int
    """Nsight Systems' number of the process, unique in a report."""
    pid: int
    """ReportProcess id of the operating system."""
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


def rows_of(database: Database, table: str, process: ReportProcess) -> Filter:
    """Return the condition for the rows of one process, every row where there is a single process."""
    first = process.global_pid
    if not process.id:
        return EVERY_ROW
    if database.has(table, "globalPid"):
        return database.only(table, "globalPid", (first, first))
    return database.only(table, "globalTid", (first, first | THREAD))


def processes(path: Path) -> list[ReportProcess]:
    """Return the processes of a report or export that are ranks, in order of device and process id."""
    with open_database(export_of(path), str(path)) as database:
        return processes_in(database)


def select_process(database: Database, process: str | None) -> ReportProcess:
    """Return the process called `process`; the only one where no name is given."""
    candidates = processes_in(database)
    if process is None and len(candidates) <= 1:
        return candidates[0] if candidates else ReportProcess("", 0, 0, "", ())
    selected = next((candidate for candidate in candidates if candidate.id == process), None)
    if selected is None:
        ids = ", ".join(candidate.id for candidate in candidates) or "none"
        message = f"there is no process {process}" if process else "it holds several processes"
        raise InputError(message, where=database.name, fix=f"choose one of: {ids}")
    return selected


def processes_in(database: Database) -> list[ReportProcess]:
    """Return the processes of an open export that are ranks, in order of device and process id."""
    devices: dict[int, set[int]] = {}
    for tables in (RUNNING, MOVING):  # copies count where a process ran no kernel
        pairs = [
            pair
            for table in tables
            for pair in complete_rows(
                database.distinct(table, {"globalPid": "integer", "deviceId": "integer"})
            )
        ]
        earlier = set(devices)
        for owner, device in pairs:
            if owner not in earlier:
                devices.setdefault(owner, set()).add(device)
    owners = set(devices)
    for table in () if devices else RANGES:
        only = Filter(sql='"end" IS NOT NULL') if database.has(table, "end") else EVERY_ROW
        threads = database.distinct(table, {"globalTid": "integer"}, only)["globalTid"].drop_nulls()
        owners |= {process_of(thread) for thread in threads}
    names = dict(complete_rows(database.frame("PROCESSES", {"globalPid": "integer", "name": "text"})))
    ranks = recorded_ranks(database)
    pids = {owner: owner >> THREAD_BITS & THREAD for owner in sorted(owners)}
    shared_pids = {pid for pid, count in Counter(pids.values()).items() if count > 1}  # by several hosts
    candidates = [
        ReportProcess(
            id=f"pid{pid}-host{owner >> 2 * THREAD_BITS & 0xFFFF:x}" if pid in shared_pids else f"pid{pid}",
            global_pid=owner,
            pid=pid,
            name=names.get(owner, ""),
            devices=tuple(sorted(devices.get(owner, ()))),
            rank=ranks.get(owner),
        )
        for owner, pid in pids.items()
    ]
    if len(candidates) == 1 and len(candidates[0].devices) <= 1:
        # The environment is that of the recorded command: behind a launcher it is not the ranks' own.
        rank, size = place_in_environment(database)
        if candidates[0].rank in {None, rank}:
            return [replace(candidates[0], rank=rank, world_size=size)]
        return candidates
    single = [process.devices[0] for process in candidates if len(process.devices) == 1]
    if len(candidates) == len(single) == len(set(single)):
        order = sorted(single)
        candidates = [replace(each, local_rank=order.index(each.devices[0])) for each in candidates]
    parts = [part for process in candidates for part in _by_device(process)]
    return sorted(parts, key=lambda process: (process.devices, process.global_pid))


def _by_device(process: ReportProcess) -> list[ReportProcess]:
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
