"""Reader of rocprofv3's recording of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import collectives as catalogue
from ccl_bench.schema import TABLES
from ccl_bench.trace import quality
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.device_order import drop_disordered
from ccl_bench.trace.formats.rocprof.database import damage_findings, open_rocpd, process_of
from ccl_bench.trace.formats.rocprof.document import GPU, process_in
from ccl_bench.trace.values import integers, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from ccl_bench.trace.formats.rocprof.document import Agent, Record, RocprofProcess, Symbol

UNNAMED = "(unnamed kernel)"
_MARK = "roctxMarkA"
"""A moment, and no range."""
_FRAME_BUFFERS = (1, 2)
"""`heap_type` of memory on the device."""
_MOST_UNITS = 1 << 20


def read_rocprof(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of a file of rocprofv3; `file` names it in messages."""
    return _content(process_in(stream.read(), file), file)


def read_rocpd(path: Path, file: str, part: str) -> TraceContent:
    """Return the content of one process of a database of rocprofv3; `file` names it in messages."""
    with open_rocpd(path, file) as database:
        process = process_of(database, part, file)
        content = _content(process, file)
        content.findings += damage_findings(database, file)
        return content


def _content(process: RocprofProcess, file: str) -> TraceContent:
    devices = NodeDevices(process.agents)
    records = process.buffer_records
    work = {record.correlation.internal for record in (*records.kernel_dispatch, *records.memory_copy)}
    tables = {
        "kernels": _kernels(process, devices),
        "memcpy": _copies(process, devices),
        "launches": _launches(process, work),
        "annotations": _ranges(process),
        "collectives": _calls(process),
    }
    by_start = {name: rows.sort("start_ns", maintain_order=True) for name, rows in tables.items()}
    possible, implausible = quality.drop_impossible(by_start, file)
    unique, repeats = quality.drop_repeated(possible, file)
    disordered: list[Finding] = []
    if _has_streams((*records.kernel_dispatch, *records.memory_copy)):  # a queue may serve several streams
        unique, disordered = drop_disordered(unique, file)
    if any(table.height for table in unique.values()):
        message = (
            "its times count from the start of the host: they cannot be compared with those of other hosts"
        )
        doubt = Finding("clock-unanchored", "warning", message, file)
    else:
        doubt = Finding("no-events", "error", "the file holds no events", file)
    findings = [doubt, *implausible, *repeats, *disordered]
    return TraceContent(tables={**unique, "devices": devices.table()}, findings=findings)


class NodeDevices:
    """The devices of a node, numbered as the node does: their order among agents that are none."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        gpus = [agent for agent in agents if agent.type == GPU]
        gpus.sort(key=lambda agent: agent.node_id)
        node_ids = [agent.logical_node_type_id for agent in gpus]
        numbers = node_ids if None not in node_ids and len({*node_ids}) == len(gpus) else range(len(gpus))
        self.by_number = {
            number: gpu for number, gpu in zip(numbers, gpus, strict=True) if number is not None
        }
        self.numbers = {gpu.id.handle: number for number, gpu in self.by_number.items()}
        self.is_host = {agent.id.handle for agent in agents if agent.type != GPU}

    def units(self, number: int | None) -> int | None:
        """Return the number of compute units of a device."""
        count = self.by_number[number].cu_count if number in self.by_number else None
        return count if count and 0 < count < _MOST_UNITS else None

    def wave(self, number: int | None) -> int | None:
        """Return the number of work-items in one wave of a device."""
        size = self.by_number[number].wave_front_size if number in self.by_number else None
        return size if size and 0 < size < _MOST_UNITS else None

    def table(self) -> pl.DataFrame:
        """Return the `devices` rows."""
        agents = sorted(self.by_number.items())
        return TABLES["devices"].frame(
            {
                "device": integers([number for number, _ in agents]),
                "name": [agent.product_name or agent.name for _, agent in agents],
                "memory_bytes": integers([_memory(agent) for _, agent in agents]),
                "sms": integers([self.units(number) for number, _ in agents]),
                "threads_per_sm": integers(
                    [(a.max_waves_per_cu or 0) * (a.wave_front_size or 0) or None for _, a in agents]
                ),
            }
        )


def _memory(agent: Agent) -> int | None:
    """Return the memory on a device, bytes."""
    return sum(bank.size_in_bytes for bank in agent.mem_banks if bank.heap_type in _FRAME_BUFFERS) or None


def _times(records: Sequence[Record]) -> dict[str, pl.Series]:
    return {
        "start_ns": integers([record.start for record in records]),
        "end_ns": integers([record.end for record in records]),
    }


def _correlations(records: Iterable[Record]) -> pl.Series:
    """Return the numbers that join work to the call that started it; 0 joins nothing."""
    return integers([record.correlation.internal or None for record in records])


def _has_streams(records: Iterable[Record]) -> bool:
    return any(record.stream and record.stream.handle for record in records)


def _streams(records: Sequence[Record]) -> pl.Series:
    """Return the stream of each record, or the queue where streams were not recorded."""
    if _has_streams(records):
        return integers([record.stream and record.stream.handle for record in records])
    return integers([record.dispatch.queue.handle or None for record in records])


def _kernels(process: RocprofProcess, devices: NodeDevices) -> pl.DataFrame:
    """Return the `kernels` rows; the grid of a launch counts work-items, which blocks divide."""
    records = process.buffer_records.kernel_dispatch
    symbols = {
        place if symbol.kernel_id is None else symbol.kernel_id: symbol
        for place, symbol in enumerate(process.kernel_symbols)
    }
    of_records = [symbols.get(record.dispatch.kernel_id) for record in records]
    device = [devices.numbers.get(record.dispatch.agent.handle) for record in records]
    threads = [record.dispatch.workgroup_size.product for record in records]
    blocks = [_blocks(record) for record in records]
    units = [devices.units(number) for number in device]
    waves = [
        -(-size // wave) if (wave := devices.wave(number)) and 0 < size < _MOST_UNITS else None
        for size, number in zip(threads, device, strict=True)
    ]
    return TABLES["kernels"].frame(
        {
            **_times(records),
            "name": pl.Series([_name(symbol) for symbol in of_records], dtype=pl.Categorical),
            "device": integers(device),
            "stream": _streams(records),
            "correlation": _correlations(records),
            "blocks_per_sm": pl.Series(
                [b / u if b and u else None for b, u in zip(blocks, units, strict=True)], dtype=pl.Float64
            ),
            "warps_per_sm": pl.Series(
                [b * w / u if b and w and u else None for b, w, u in zip(blocks, waves, units, strict=True)],
                dtype=pl.Float64,
            ),
            "grid_blocks": integers(blocks),
            "block_threads": integers([size or None for size in threads]),
            "registers": integers([symbol and symbol.arch_vgpr_count for symbol in of_records]),
            "shared_memory_bytes": integers([record.dispatch.group_segment_size for record in records]),
        }
    )


def _name(symbol: Symbol | None) -> str:
    """Return the name of a kernel as its source has it, without what the compiler appends."""
    if symbol is None:
        return UNNAMED
    name = symbol.formatted_kernel_name or symbol.kernel_name
    return name.removesuffix(" [clone .kd]").removesuffix(".kd") or UNNAMED


def _blocks(record: Record) -> int | None:
    grid, block = record.dispatch.grid_size, record.dispatch.workgroup_size
    sides = ((grid.x, block.x), (grid.y, block.y), (grid.z, block.z))
    if any(not (whole(work) and whole(side)) or side < 1 for work, side in sides):
        return None
    count = 1
    for work, side in sides:
        count *= -(-work // side)
    return whole(count)


def _copies(process: RocprofProcess, devices: NodeDevices) -> pl.DataFrame:
    """Return the `memcpy` rows; the device is the one that is written, of a copy to the host the other."""
    records = process.buffer_records.memory_copy
    kinds = [_copy_kind(record, devices) for record in records]
    ends = [
        record.source if kind == "DtoH" else record.destination
        for record, kind in zip(records, kinds, strict=True)
    ]
    return TABLES["memcpy"].frame(
        {
            **_times(records),
            "kind": pl.Series(kinds, dtype=pl.String),
            "device": integers([devices.numbers.get(end.handle) for end in ends]),
            "stream": _streams(records),
            "correlation": _correlations(records),
            "bytes": integers([record.bytes for record in records]),
        }
    )


def _copy_kind(record: Record, devices: NodeDevices) -> str:
    source, destination = record.source.handle, record.destination.handle
    sides = tuple(
        "D" if end in devices.numbers else "H" if end in devices.is_host else ""
        for end in (source, destination)
    )
    if sides == ("D", "D"):
        return "DtoD" if source == destination else "PtoP"
    return f"{sides[0]}to{sides[1]}" if all(sides) else "other"


def _launches(process: RocprofProcess, work: set[int]) -> pl.DataFrame:
    """Return the `launches` rows: calls of HIP, and of HSA below it those that started work themselves."""
    records = process.buffer_records
    by_hip = {record.correlation.internal for record in records.hip_api}
    beside = [
        r for r in records.hsa_api if (number := r.correlation.internal) in work and number not in by_hip
    ]
    calls = [*records.hip_api, *beside]
    return TABLES["launches"].frame(
        {
            **_on_thread(process, calls),
            "name": pl.Series(
                [process.operation(call) or "(unnamed)" for call in calls], dtype=pl.Categorical
            ),
            "correlation": _correlations(calls),
        }
    )


def _on_thread(process: RocprofProcess, records: Sequence[Record]) -> dict[str, pl.Series]:
    return {
        **_times(records),
        "process": integers([process.metadata.pid] * len(records)),
        "thread": integers([record.thread_id for record in records]),
    }


def _ranges(process: RocprofProcess) -> pl.DataFrame:
    """Return the `annotations` rows: ranges that the program marked with roctx."""
    texts = {message.key: message.value for message in process.strings.marker_api}
    records = [
        record
        for record in process.buffer_records.marker_api
        if texts.get(record.correlation.internal) and process.operation(record) != _MARK
    ]
    names = [texts[record.correlation.internal] for record in records]
    return TABLES["annotations"].frame(
        {
            **_on_thread(process, records),
            "name": pl.Series(names, dtype=pl.Categorical),
            "on_device": pl.Series([False] * len(records), dtype=pl.Boolean),
        }
    )


def _calls(process: RocprofProcess) -> pl.DataFrame:
    """Return the `collectives` rows: calls of RCCL that communicate, whose arguments are not recorded."""
    with_names = ((record, process.operation(record)) for record in process.buffer_records.rccl_api)
    calls = [
        (r, n) for r, n in with_names if n[4:5].isupper() and catalogue.canonical(n.removeprefix("nccl"))
    ]
    records = [record for record, _ in calls]
    return TABLES["collectives"].frame(
        {
            **_times(records),
            "source": pl.Series(["library"] * len(records), dtype=pl.String),
            "name": pl.Series([name for _, name in calls], dtype=pl.String),
            "thread": integers([record.thread_id for record in records]),
        }
    )
