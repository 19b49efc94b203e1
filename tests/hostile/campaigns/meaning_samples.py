"""Small invented runs in which each damage of meaning finds something to change, and what it changed."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import bytes_damage

if TYPE_CHECKING:
    from pathlib import Path

    from meaning_runs import Document, Traces

STEPS = 4
STEP_US = 10_000.0


def _event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    device = cat in {"kernel", "gpu_memcpy"}
    place = {"pid": 0, "tid": args["stream"]} if device else {"pid": 500, "tid": 500}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args} | place


def _call(at: float, number: int, group: str) -> list[dict[str, Any]]:
    """Return one all-reduce of 1,000 numbers: operator, range, launch and kernel."""
    stated = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
    stated |= {
        "Process Group Name": group,
        "Process Group Description": f"mesh_{group}",
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
    }
    return [
        _event("cpu_op", "record_param_comms", at, 80, **stated, **{"Input Dims": [[[10, 100]], []]}),
        _event("user_annotation", "nccl:all_reduce", at + 10, 60, **{"Input Dims": [[1000]]}),
        _event("cuda_runtime", "cudaLaunchKernel", at + 20, 5, correlation=number),
        _event("kernel", "ncclKernel_AllReduce", at + 40, 200, stream=20, correlation=number, **stated),
    ]


def trace(rank: int) -> Document:
    """Return the trace of one of two ranks, each step with twelve kernels, a copy and two collectives."""
    start, number = 1e6, 0
    events = []
    for step in range(STEPS):
        at = start + STEP_US * step
        events.append(_event("user_annotation", f"ProfilerStep#{step}", at, STEP_US))
        began = at + 100
        for place in range(12):
            length, number = 100.0 + 15 * (place * 5 % 12), number + 1
            events += [
                _event("cpu_op", "aten::mm", began, 50),
                _event("cuda_runtime", "cudaLaunchKernel", began + 10, 5, correlation=number),
                _event("kernel", f"gemm{place}", began + 30, length, stream=7, correlation=number),
            ]
            began += length + 20
        events.append(_event("cuda_runtime", "cudaMemcpyAsync", at + 5100, 5, correlation=number + 1))
        events.append(
            _event("gpu_memcpy", "Memcpy", at + 5200, 30, stream=7, correlation=number + 1, bytes=4096)
        )
        events += _call(at + 6000, number + 2, "0") + _call(at + 7000, number + 3, "1")
        number += 3
    for place, event in enumerate(events):
        event["number"] = place + 100_000 * rank
    return {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}


def write_traces(folder: Path) -> Path:
    """Write the traces of two ranks."""
    folder.mkdir(parents=True)
    for rank in (0, 1):
        (folder / f"rank{rank}.json.gz").write_bytes(bytes_damage.packed(json.dumps(trace(rank)).encode()))
    return folder


def write_export(folder: Path) -> Path:
    """Write an export of Nsight Systems of two processes: forty kernels, copies and ranges each."""
    folder.mkdir(parents=True)
    times = "start INTEGER, end INTEGER"
    work = f"{times}, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER"
    layout = {
        "StringIds": "id INTEGER, value TEXT",
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{work}, shortName INTEGER",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{work}, bytes INTEGER",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{work}, bytes INTEGER",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{times}, globalPid INTEGER",
        "CUPTI_ACTIVITY_KIND_RUNTIME": f"{times}, globalTid INTEGER, correlationId INTEGER",
        "NVTX_EVENTS": f"{times}, globalTid INTEGER",
    }
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in layout}
    rows["StringIds"] = [(1, "gemm"), (2, "ncclKernel_AllReduce"), (3, "add")]
    for device in (0, 1):
        process = (device + 1) << 24
        for place in range(40):
            at = 1_000_000 * (place + 1)
            row = (at, at + 50_000 + 1000 * place, device, 7, place, process)
            rows["CUPTI_ACTIVITY_KIND_KERNEL"].append((*row, 1 + place % 3))
            for what in ("MEMCPY", "MEMSET"):
                rows[f"CUPTI_ACTIVITY_KIND_{what}"].append((*row, 4096))
            rows["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"].append((at + 90_000, at + 95_000, process))
            rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append((at - 20_000, at - 15_000, process | 9, place))
            rows["NVTX_EVENTS"].append((at - 30_000, at + 90_000, process | 9))
    with sqlite3.connect(folder / "report.sqlite") as database:
        for name, columns in layout.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" * len(rows[name][0]))
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows[name])
    database.close()
    return folder


def flat(event: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an event and of its arguments."""
    return {key: value for key, value in event.items() if key != "args"} | (event.get("args") or {})


class Difference:
    """What a damage changed in the trace of a rank."""

    def __init__(self, before: Document, after: Document) -> None:
        had = {event["number"]: event for event in before["traceEvents"]}
        has = Counter(event["number"] for event in after["traceEvents"])
        self.lost = [had[number] for number in had if number not in has]
        self.again = [event for event in after["traceEvents"] if has[event["number"]] > 1]
        self.foreign = [event for event in after["traceEvents"] if event["number"] not in had]
        self.changed = [
            (had[event["number"]], event)
            for event in after["traceEvents"]
            if event["number"] in had and event != had[event["number"]] and has[event["number"]] == 1
        ]
        self.keys = {
            key
            for old, new in self.changed
            for key in {*flat(old), *flat(new)}
            if flat(old).get(key) != flat(new).get(key)
        }
        self.head = before["distributedInfo"] != after["distributedInfo"]

    def __str__(self) -> str:
        """Return categories of what is lost, twice or foreign, and the keys of what changed."""
        parts = [
            f"{name} {' '.join(sorted({event['cat'] for event in held}))}"
            for name, held in (("lost", self.lost), ("twice", self.again), ("foreign", self.foreign))
            if held
        ]
        parts += [f"changed {', '.join(sorted(self.keys))}"] if self.keys else []
        return "; ".join([*parts, *(["header"] if self.head else [])])


def differences(run: Traces) -> list[Difference]:
    """Return what differs in each trace of a run that was written by `write_traces`."""
    known = {f"rank{rank}.json.gz": trace(rank) for rank in (0, 1)}
    found = [
        Difference(known[name], copy.deepcopy(run.document(name))) for name in run.names if name in known
    ]
    return [difference for difference in found if str(difference)]


def tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table of an export."""
    database = sqlite3.connect(path)
    database.row_factory = sqlite3.Row
    try:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
        return {name: [dict(row) for row in database.execute(f"SELECT * FROM {name}")] for name in names}
    finally:
        database.close()
