"""What is decoded of rocprofv3's JSON: the fields that become tables, by the names of its writer.

`source/lib/output/generateJSON.cpp` of ROCprofiler-SDK writes one process a file: what is known of it
(`metadata`, `agents`, `strings`, `kernel_symbols`), then records by service (`buffer_records`). Times are
nanoseconds of CLOCK_BOOTTIME.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from ccl_bench.base.errors import InputError
from ccl_bench.base.text import json_decoder
from ccl_bench.trace import memory

GPU = 2
"""`type` of an agent that is a device; 1 is a CPU."""


class Handle(Struct, gc=False):
    """A number that the runtime gives an agent, a queue or a stream."""

    handle: int = 0


class Size(Struct, gc=False):
    """Three sides."""

    x: int = 0
    y: int = 0
    z: int = 0

    @property
    def product(self) -> int:
        """Return the product of the three sizes."""
        return self.x * self.y * self.z


class Correlation(Struct, gc=False):
    """Number of the call that a record belongs to."""

    internal: int = 0


class Dispatch(Struct, gc=False):
    """`dispatch_info` of a kernel; the grid counts work-items, not workgroups."""

    agent: Handle = field(name="agent_id", default_factory=Handle)
    queue: Handle = field(name="queue_id", default_factory=Handle)
    kernel_id: int = 0
    group_segment_size: int | None = None
    workgroup_size: Size = field(default_factory=Size)
    grid_size: Size = field(default_factory=Size)


class Record(Struct, gc=False):
    """One record; `kind` and `operation` are numbers of `strings.buffer_records`."""

    kind: int = -1
    operation: int = -1
    thread_id: int | None = None
    correlation: Correlation = field(name="correlation_id", default_factory=Correlation)
    start: int | None = field(name="start_timestamp", default=None)
    end: int | None = field(name="end_timestamp", default=None)
    stream: Handle | None = field(name="stream_id", default=None)
    dispatch: Dispatch = field(name="dispatch_info", default_factory=Dispatch)
    source: Handle = field(name="src_agent_id", default_factory=Handle)
    destination: Handle = field(name="dst_agent_id", default_factory=Handle)
    bytes: int | None = None


class Records(Struct, gc=False):
    """`buffer_records`."""

    kernel_dispatch: list[Record] = []
    hip_api: list[Record] = []
    hsa_api: list[Record] = []
    marker_api: list[Record] = []
    rccl_api: list[Record] = []
    memory_copy: list[Record] = []


class MemoryBank(Struct, gc=False):
    """Memory of an agent."""

    heap_type: int = 0
    size_in_bytes: int = 0


class Agent(Struct, gc=False):
    """A CPU or a device of the node."""

    id: Handle = field(default_factory=Handle)
    type: int = 0
    node_id: int = 0
    logical_node_type_id: int | None = None
    name: str = ""
    product_name: str = ""
    cu_count: int | None = None
    max_waves_per_cu: int | None = None
    wave_front_size: int | None = None
    mem_banks: list[MemoryBank] = []


class Symbol(Struct, gc=False):
    """A kernel of the program."""

    kernel_id: int | None = None
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    arch_vgpr_count: int | None = None


class RecordKind(Struct, gc=False):
    """A kind of records and the names of its operations, by number."""

    kind: str = ""
    operations: list[str] = []


class RangeText(Struct, gc=False):
    """The text that the program gave a mark or range, by the number of the call."""

    key: int = 0
    value: str = ""


class Strings(Struct, gc=False):
    """`strings`."""

    buffer_records: list[RecordKind] = []
    marker_api: list[RangeText] = []


class Metadata(Struct, gc=False):
    """`metadata`."""

    pid: int | None = None


class RocprofProcess(Struct, gc=False):
    """One process."""

    metadata: Metadata = field(default_factory=Metadata)
    agents: list[Agent] = []
    strings: Strings = field(default_factory=Strings)
    kernel_symbols: list[Symbol] = []
    buffer_records: Records = field(default_factory=Records)

    def operation(self, record: Record) -> str:
        """Return the name of a record's operation, empty for an unknown one."""
        kinds = self.strings.buffer_records
        names = kinds[record.kind].operations if 0 <= record.kind < len(kinds) else []
        return names[record.operation] if 0 <= record.operation < len(names) else ""


class _RocprofDocument(Struct, gc=False):
    processes: list[RocprofProcess] = field(name="rocprofiler-sdk-tool", default_factory=list)


_DECODER = json_decoder(_RocprofDocument)


def process_in(text: bytes, file: str) -> RocprofProcess:
    """Return the process in a file; InputError if it cannot be read or holds another number of them."""
    memory.hold_json(text)
    try:
        processes = _DECODER.decode(text).processes
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fix = "let the program end by itself, so that rocprofv3 writes the whole file, or copy it again"
        raise InputError(f"its records cannot be read: {error}", where=file, fix=fix) from error
    if len(processes) != 1:
        message = f"holds {len(processes)} processes, but rocprofv3 writes one for each file"
        raise InputError(message, where=file, fix="give the files as rocprofv3 wrote them")
    return processes[0]
