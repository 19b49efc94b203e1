"""The tables of a memory snapshot: what the allocator holds, and what it did to get there."""

from __future__ import annotations

from ccl_bench.schema.table import declared as _table

_DEVICE = ("Int64", "device number")
_STACK = ("Int64", "call stack, a row of `memory_stacks`; null where none was recorded")
_STREAM = ("Int64", "stream")
_ACTION = (
    "`alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free`, `segment_map`, "
    "`segment_unmap`, `snapshot` or `oom`"
)

MEMORY_TABLES = (
    _table(
        "memory_events",
        "One thing that the caching allocator of a device did.",
        device=_DEVICE,
        order=("Int64", "place in the device's history, from 0"),
        time_ns=("Int64", "time, ns; null in snapshots of PyTorch before 2.1"),
        action=("Categorical", _ACTION),
        address=("Int64", "address on the device"),
        bytes=("Int64", "bytes asked for, of a segment its size, of a `snapshot` the active bytes"),
        stream=_STREAM,
        device_free_bytes=("Int64", "of `oom`: free bytes of the device"),
        category=("Categorical", "what it is for, such as `gradient`, where a profiler knew"),
        metadata=("Categorical", "note that the program gave along"),
        compile_context=("Categorical", "compiled graph that it belongs to"),
        stack=_STACK,
    ),
    _table(
        "memory_segments",
        "One piece of memory that the allocator held from the driver when the snapshot was taken.",
        device=_DEVICE,
        address=("Int64", "address on the device"),
        bytes=("Int64", "size, bytes"),
        allocated_bytes=("Int64", "bytes of its blocks that are in tensors"),
        active_bytes=("Int64", "these, and bytes of freed blocks that a stream may still use"),
        requested_bytes=("Int64", "bytes that were asked for; null in old snapshots"),
        stream=_STREAM,
        kind=("String", "pool of blocks: `small` (up to 1 MiB) or `large`"),
        is_expandable=("Boolean", "whether it grows and shrinks by pages; null in old snapshots"),
        pool=("String", "private pool, such as a CUDA graph's; null for the common one"),
        blocks=("Int64", "blocks that it is split into"),
        stack=_STACK,
    ),
    _table(
        "memory_blocks",
        "One block of a segment when the snapshot was taken.",
        device=_DEVICE,
        segment=("Int64", "address of its segment"),
        address=("Int64", "address on the device"),
        bytes=("Int64", "size, bytes"),
        requested_bytes=("Int64", "bytes that were asked for; null where not recorded"),
        state=("String", "`allocated`, `pending_free` (a stream may still use it) or `inactive`"),
        stream=_STREAM,
        stack=_STACK,
    ),
    _table(
        "memory_stacks",
        "One call stack of a memory snapshot.",
        stack=("Int64", "number"),
        frames=("List(Int64)", "rows of `memory_frames`, the innermost first"),
    ),
    _table(
        "memory_frames",
        "One frame of call stacks of a memory snapshot.",
        frame=("Int64", "number"),
        function=("String", "function"),
        file=("String", "source file"),
        line=("Int64", "line"),
    ),
    _table(
        "memory_settings",
        "One setting of the caching allocator that is a number.",
        name=("String", "setting, such as `max_split_size`"),
        value=("Int64", "value; sizes in bytes, -1 for no limit"),
    ),
)
