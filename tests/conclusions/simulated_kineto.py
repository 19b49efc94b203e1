"""Writes simulated ranks as Kineto writes them: operators, calls of the runtime, kernels, copies, ranges."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from simulate import Call, RankRecord, Task

BASE_NS = 1_763_596_800_000_000_000
"""`baseTimeNanoseconds` of every file."""

ORIGIN_NS = 5_000_000_000_000
"""Time 0 of the simulation in a file, ns."""

RECORD, STOP = "recording starts", "recording stops"
"""Marks of the program between which the profiler records."""

_SHAPE = {
    "registers per thread": 96,
    "shared memory": 49_152,
    "blocks per SM": 4.0,
    "warps per SM": 32.0,
    "grid": [432, 1, 1],
    "block": [256, 1, 1],
    "est. achieved occupancy %": 38,
}
_OPERATOR_OF = {"allreduce": "all_reduce", "send": "send", "recv": "recv"}


@dataclass(frozen=True)
class Form:
    """How the files of a run are written."""

    device: str = "NVIDIA A100-SXM4-80GB"
    """Name of the devices; empty for a run without any."""
    skews_ns: tuple[int, ...] = ()
    """Offset of each rank's clock, ns."""
    has_arrows: bool = True
    """Whether `ac2g` arrows lead from launches to work."""
    has_twins: bool = False
    """Whether ranges of steps also stand on the device."""
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Description and ranks of every process group."""


def write_ranks(records: Sequence[RankRecord], form: Form, folder: Path) -> None:
    """Write one trace for each rank into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, record in enumerate(records):
        written = _Written(rank, len(records), record, form)
        content = {**written.header(), "traceEvents": list(written.events())}
        (folder / f"rank{rank}_trace.json").write_text(json.dumps(content), encoding="utf-8")


class _Written:
    """The recording of one rank."""

    def __init__(self, rank: int, ranks: int, record: RankRecord, form: Form) -> None:
        self.rank, self.ranks, self.record, self.form = rank, ranks, record, form
        self.process = 7_000 + 100 * rank
        self.shift_ns = ORIGIN_NS + (form.skews_ns[rank] if form.skews_ns else 0)
        self.start_ns, self.stop_ns = record.marks[RECORD], record.marks[STOP]

    def header(self) -> dict[str, Any]:
        """Return what stands before the events."""
        device = {"name": self.form.device, "totalGlobalMem": 85_031_714_816, "computeMajor": 8}
        device |= {"computeMinor": 0, "warpSize": 32, "numSms": 108}
        own = [(name, ranks) for name, ranks in self.form.groups if self.rank in ranks]
        groups = [
            {"pg_name": str(number), "pg_desc": name, "pg_size": len(ranks), "ranks": list(ranks)}
            for number, (name, ranks) in enumerate(own)
        ]
        backend = "nccl" if self.form.device else "gloo"
        info = {"backend": backend, "rank": self.rank, "world_size": self.ranks, "pg_count": len(groups)}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": each} | device for each in range(self.ranks)]
            if self.form.device
            else [],
            "record_shapes": 1,
            "distributedInfo": info | {"pg_config": groups},
            "baseTimeNanoseconds": BASE_NS,
            "displayTimeUnit": "ms",
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what the profiler recorded: what began after its start and ended before its stop."""
        yield self._range(
            "Trace", "PyTorch Profiler (0)", "Spans", "PyTorch Profiler", self.start_ns, self.stop_ns, {}
        )
        for each in self.record.host:
            if each.start_ns < self.start_ns or each.end_ns > self.stop_ns:
                continue
            if each.correlation:
                ids: dict[str, Any] = {
                    "External id": each.number,
                    "cbid": 211,
                    "correlation": each.correlation,
                }
            else:
                ids = {"External id": each.number, "Record function id": 0, **self._arguments(each.call)}
            thread = self.process + each.thread
            yield self._range(each.category, each.name, self.process, thread, each.start_ns, each.end_ns, ids)
        for task in self.record.device:
            if task.start_ns >= self.start_ns:
                yield from self._work(task)
        if self.form.has_twins:
            yield from self._twins()

    def _range(
        self,
        category: str,
        name: str,
        process: int | str,
        thread: int | str,
        start_ns: int,
        end_ns: int,
        arguments: dict[str, Any],
    ) -> dict[str, Any]:
        head = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread}
        times = {"ts": (start_ns + self.shift_ns) / 1000, "dur": (end_ns - start_ns) / 1000}
        return {**head, **times, "args": arguments}

    def _work(self, task: Task) -> Iterator[dict[str, Any]]:
        """Yield a piece of work; torch describes a collective only where its launch is recorded."""
        work = task.work
        if not self.form.device:
            thread = self.process + work.stream
            yield self._range(
                "user_annotation", work.name, self.process, thread, task.start_ns, task.end_ns,
                {"External id": task.correlation, "Record function id": 0},
            )  # fmt: skip
            return
        is_launched = task.launched_ns >= self.start_ns
        ids: dict[str, Any] = {
            "External id": task.operator,
            "device": self.rank,
            "context": 1,
            "stream": work.stream,
        }
        ids |= {"correlation": task.correlation}
        if work.category == "kernel":
            ids |= {"queued": 0, **_SHAPE, **(self._arguments(work.call) if is_launched else {})}
        else:
            length = max(1, task.end_ns - task.start_ns)
            ids |= {"bytes": work.bytes, "memory bandwidth (GB/s)": work.bytes / length}
        yield self._range(work.category, work.name, self.rank, work.stream, task.start_ns, task.end_ns, ids)
        if self.form.has_arrows and is_launched:
            for end, process, thread, at_ns in (
                ("s", self.process, self.process + task.thread, task.launched_ns),
                ("f", self.rank, work.stream, task.start_ns),
            ):
                arrow = {"ph": end, "id": task.correlation, "pid": process, "tid": thread}
                yield {
                    **arrow,
                    "ts": (at_ns + self.shift_ns) / 1000,
                    "cat": "ac2g",
                    "name": "ac2g",
                    "bp": "e",
                }

    def _twins(self) -> Iterator[dict[str, Any]]:
        """Yield the device's copies of the ranges of steps, around the work that was launched in them."""
        for each in self.record.host:
            if not each.name.startswith("ProfilerStep#") or each.start_ns < self.start_ns:
                continue
            inside = [
                task
                for task in self.record.device
                if each.start_ns <= task.launched_ns < each.end_ns and task.work.call is None
            ]
            if inside:
                start, end = min(task.start_ns for task in inside), max(task.end_ns for task in inside)
                ids = {"External id": each.number}
                stream = inside[0].work.stream
                yield self._range("gpu_user_annotation", each.name, self.rank, stream, start, end, ids)

    def _arguments(self, call: Call | None) -> dict[str, Any]:
        if call is None:
            return {}
        own = [group for group in self.form.groups if self.rank in group[1]]
        ranks = f"[{', '.join(map(str, call.ranks))}]"
        end = {"send": "Dst Rank", "recv": "Src Rank"}.get(call.collective)
        return {
            "Collective name": call.collective,
            "In msg nelems": call.elements,
            "Out msg nelems": call.elements,
            "Group size": len(call.ranks),
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": str(own.index((call.description, call.ranks))),
            "Process Group Description": call.description,
            "Process Group Ranks": ranks,
            **({end: call.peer} if end else {"Seq": call.number}),
        }


def operator_name(collective: str) -> str:
    """Return the name of a collective in annotations, such as `all_reduce`."""
    return _OPERATOR_OF[collective]
