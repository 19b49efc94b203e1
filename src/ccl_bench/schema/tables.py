"""The raw tables of a trace: their columns, types and meanings.

Times are integer nanoseconds since the epoch of the recording host's clock (or since an
arbitrary zero where the file gives none), intervals are half-open `[start_ns, end_ns)`,
sizes are integer bytes. A table holds one trace, which is one rank in one recorded window;
`rank` and `iteration` are added when tables of several traces are put together.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ccl_bench.schema.table import declared as _table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.schema.table import Table

_Columns = dict[str, tuple[str, str]]
"""Columns that several tables have: name → type and meaning."""

_NAME = ("Categorical", "name as recorded")
_CORRELATION = ("Int64", "id that joins a launch on the CPU to the work it started on the device")
_EXTERNAL = ("Int64", "id of the operator that was running when this was launched")
_DEVICE = ("Int64", "device number")
_STREAM = ("Int64", "stream")
_STACK = ("Int64", "call stack, a row of `memory_stacks`; null if none was recorded")
_ACTION = (
    "`alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free`, `segment_map`, "
    "`segment_unmap`, `snapshot` or `oom`"
)

_SPAN: _Columns = {"start_ns": ("Int64", "start, ns"), "end_ns": ("Int64", "end, ns, exclusive")}
_THREAD: _Columns = {"process": ("Int64", "process id"), "thread": ("Int64", "thread id")}
_LAUNCHED: _Columns = {
    "device": _DEVICE,
    "stream": _STREAM,
    "correlation": _CORRELATION,
    "external_id": _EXTERNAL,
}
_ELEMENTS: _Columns = {
    "dtype": ("String", "element type as recorded"),
    "in_elements": ("Int64", "elements sent by this rank"),
    "out_elements": ("Int64", "elements received by this rank"),
}
_GROUP: _Columns = {
    "name": ("String", "process group name"),
    "description": ("String", "description, such as `mesh_tp`"),
    "backend": ("String", "backend, such as `cuda:nccl`"),
    "size": ("Int64", "members"),
    "ranks": ("List(Int64)", "global ranks of the members; null when not listed"),
}

_BENCHMARK = ("Int64", "number of the benchmark in its file, from 0")
_TOOL = ("String", "tool that drove the load, by the name of its format")

_TABLES = (
    _table(
        "kernels",
        "One kernel that ran on a device.",
        **_SPAN,
        name=_NAME,
        **_LAUNCHED,
        collective=("String", "`Collective name` as recorded with the kernel, null for other kernels"),
        blocks_per_sm=("Float64", "blocks in the grid divided by the number of SMs"),
        warps_per_sm=("Float64", "warps in the grid divided by the number of SMs"),
        occupancy_pct=("Float64", "estimated achieved occupancy, %"),
        grid_blocks=("Int64", "blocks in the grid"),
        block_threads=("Int64", "threads in a block"),
        registers=("Int64", "registers per thread"),
        shared_memory_bytes=("Int64", "shared memory per block, bytes"),
    ),
    _table(
        "memcpy",
        "One copy or memory set that ran on a device.",
        **_SPAN,
        kind=("String", "`HtoD`, `DtoH`, `DtoD`, `PtoP`, `HtoH`, `memset` or `other`"),
        is_pageable=("Boolean", "whether the memory of the host is pageable; null if unknown or without any"),
        **_LAUNCHED,
        bytes=("Int64", "bytes moved or set"),
    ),
    _table(
        "cpu_ops",
        "One operator that ran on a CPU thread.",
        **_SPAN,
        name=_NAME,
        **_THREAD,
        external_id=_EXTERNAL,
        record_function_id=("Int64", "id shared with the Execution Trace; 0 or null without one"),
        sequence_number=("Int64", "autograd sequence number"),
        forward_thread=("Int64", "autograd's number of the forward thread"),
    ),
    _table(
        "products",
        "One operator that multiplied matrices, or stacks of them; sizes are null without recorded shapes.",
        **_SPAN,
        name=("String", "name as recorded, such as `aten::mm`"),
        thread=("Int64", "thread id"),
        batch=("Int64", "pairs of matrices"),
        rows=("Int64", "rows of the first matrix"),
        inner=("Int64", "its columns, and rows of the second"),
        columns=("Int64", "columns of the second matrix"),
        dtype=("String", "element type as recorded"),
    ),
    _table(
        "hlo_operations",
        "One instruction of an XLA program each time it ran, with the compiler's own counts.",
        **_SPAN,
        name=("Categorical", "name of the instruction in its program, such as `fusion.3`"),
        program=("Categorical", "name of the program, such as `jit_train_step`"),
        category=("Categorical", "kind of instruction, such as `convolution fusion`; its opcode elsewhere"),
        flops=("Float64", "operations of one run; of its matrix products where the compiler states none"),
        model_flops=("Float64", "those of them that the model itself needs; null if not stated"),
        bytes=("Float64", "bytes read and written by one run, of every memory; null if not stated"),
        memory_bytes=("Float64", "those of them in the device's main memory; null if not stated"),
    ),
    _table(
        "launches",
        "One call of the CUDA or HIP runtime or driver.",
        **_SPAN,
        name=_NAME,
        **_THREAD,
        correlation=_CORRELATION,
        external_id=_EXTERNAL,
    ),
    _table(
        "annotations",
        "One named range that the program or framework marked.",
        **_SPAN,
        name=_NAME,
        process=("Int64", "process id"),
        thread=("Int64", "thread id, or stream for a device range"),
        on_device=("Boolean", "whether the range is the device's twin of a CPU range"),
        external_id=_EXTERNAL,
    ),
    _table(
        "collectives",
        "One communication call with the arguments recorded for it.",
        **_SPAN,
        source=(
            "String",
            "`kernel`, `host` (record_param_comms), ranges `gloo`, `nccl`, `mpi`, `library`, `op`, `custom`",
        ),
        name=("String", "name as recorded"),
        thread=("Int64", "CPU thread, or stream for a kernel"),
        correlation=_CORRELATION,
        external_id=_EXTERNAL,
        **_ELEMENTS,
        in_split=("List(Int64)", "rows sent to each member of an all-to-all; empty if all get the same"),
        out_split=("List(Int64)", "rows received from each member; empty if all give the same"),
        group_size=("Int64", "members of the process group"),
        group_name=("String", "process group name"),
        group_description=("String", "process group description, such as `mesh_tp`"),
        group_ranks=("List(Int64)", "global ranks of the members; null when the list was cut or absent"),
        group_start=("Int64", "first global rank of the group"),
        group_stride=("Int64", "stride between global ranks of the group"),
        sequence=("Int64", "`Seq`: running number of the call on its group"),
        communicator=("String", "`Comms Id`, an unsigned 64-bit number kept as text"),
        peer=("Int64", "the other rank of a send or receive"),
        peer_position=("Int64", "its place in the process group; of `library`, in the communicator"),
        is_async=("Boolean", "whether the call returned before completion"),
    ),
    _table(
        "counters",
        "One sample of a hardware counter.",
        time_ns=("Int64", "time of the sample, ns"),
        device=_DEVICE,
        name=("String", "counter, such as `SM Active` or `DRAM Read`"),
        value=("Float64", "value, % of what the device can do"),
    ),
    _table(
        "network_traffic",
        "One sample of what a network card of the node sent or received.",
        **_SPAN,
        card=("String", "name of the network card and number of its port"),
        is_sent=("Boolean", "whether the card sent it; else it received it"),
        bytes_per_s=("Float64", "rate over the sample"),
    ),
    _table(
        "autograd_links",
        "One arrow from a forward operator to its backward operator.",
        forward_ns=("Int64", "start of the forward operator, ns"),
        forward_thread=("Int64", "thread of the forward operator"),
        backward_ns=("Int64", "start of the backward operator, ns"),
        backward_thread=("Int64", "thread of the backward operator"),
    ),
    _table(
        "et_nodes",
        "One operator or label of an Execution Trace; it has an order but no times.",
        node=("Int64", "number of the node, in order of start"),
        name=_NAME,
        parent=("Int64", "node that called it"),
        forward_parent=("Int64", "node of the forward pass that it belongs to; 0 without one"),
        rf_id=("Int64", "id shared with Kineto's operators; 0 for nodes of the observer itself"),
        sequence_number=("Int64", "autograd sequence number; -1 without one"),
        scope=("Int64", "torch's RecordScope; 7 is a range that the program or framework marked"),
        thread=("Int64", "number of the thread in this file"),
        forward_thread=("Int64", "number of the forward thread"),
    ),
    _table(
        "et_products",
        "One operator of an Execution Trace that multiplied matrices; sizes are null without shapes.",
        node=("Int64", "number of the node"),
        name=("String", "name as recorded, such as `aten::mm`"),
        batch=("Int64", "pairs of matrices"),
        rows=("Int64", "rows of the first matrix"),
        inner=("Int64", "its columns, and rows of the second"),
        columns=("Int64", "columns of the second matrix"),
        dtype=("String", "element type as recorded"),
    ),
    _table(
        "et_communication",
        "One `record_param_comms` of an Execution Trace with its arguments, also those that move nothing; "
        "`c10d::*` operators in files without any.",
        node=("Int64", "number of the node"),
        rf_id=("Int64", "id shared with Kineto's operators"),
        name=("String", "`collective_name` as recorded"),
        **_ELEMENTS,
        in_bytes=("Int64", "bytes of the tensors that this rank sends"),
        out_bytes=("Int64", "bytes of the tensors that this rank receives"),
        in_split=("List(Int64)", "rows sent to each member, for an uneven all-to-all"),
        out_split=("List(Int64)", "rows received from each member, for an uneven all-to-all"),
        group_size=("Int64", "members of the process group"),
        group_name=("String", "process group name, or its address in old traces"),
        group_description=("String", "process group description, such as `mesh_tp`"),
        group_start=("Int64", "first global rank of the group"),
        group_stride=("Int64", "stride between global ranks of the group"),
        sequence=("Int64", "running number of the call on its group"),
        rank_argument=("Int64", "place in the group: own, or that of a message's peer or of the root"),
        is_async=("Boolean", "whether the call returned before completion"),
    ),
    _table(
        "et_groups",
        "One process group as an Execution Trace knows it.",
        **_GROUP,
    ),
    _table(
        "devices",
        "One accelerator that the recording process saw.",
        device=_DEVICE,
        name=("String", "product name"),
        memory_bytes=("Int64", "device memory, bytes"),
        sms=("Int64", "streaming multiprocessors or compute units"),
        threads_per_sm=("Int64", "resident threads one multiprocessor can hold"),
        peak_flops_per_s=("Float64", "peak rate of operations that the recording states, FLOP/s"),
        memory_bytes_per_s=("Float64", "peak bandwidth of its memory that the recording states, bytes/s"),
    ),
    _table(
        "process_groups",
        "One process group as the recording process knew it.",
        **_GROUP,
    ),
    _table(
        "identity",
        "Rank and job of the trace; one row, filled in after the file was read and its rank determined.",
        rank=("Int64", "rank; null if neither file, map nor name states it"),
        world_size=("Int64", "number of ranks in the job, as the file states it"),
    ),
    _table(
        "marker",
        "Which ranges are the steps; one row if the user or the format names them, else none.",
        pattern=("String", "regular expression for the names of the ranges; null without one"),
        program=("String", "program of XLA whose runs are the steps instead; null without one"),
    ),
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
        category=("Categorical", "use of the memory, such as `gradient`, if a profiler recorded it"),
        metadata=("Categorical", "note that the program attached"),
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
        requested_bytes=("Int64", "bytes that were asked for; null if not recorded"),
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
    _table(
        "recorder_dumps",
        "One dump of PyTorch's Flight Recorder.",
        version=("String", "version of its layout, such as `2.10`"),
        library=("String", "version of the communication library; empty for gloo"),
        calls=("Int64", "calls that it holds"),
        is_whole=(
            "Boolean",
            "whether the file is whole; of one that is cut off only the first calls are known",
        ),
    ),
    _table(
        "recorded_calls",
        "One communication call of a rank, in the order of calling, as the Flight Recorder kept it.",
        record=("Int64", "number of the call in its process; above 0 in the first row, older ones are lost"),
        group=("String", "name of the process group"),
        description=("String", "use of the group, such as `default_pg`"),
        sequence=("Int64", "number of the collective in its group; calls of one coalesced group share it"),
        p2p_sequence=("Int64", "number of the send or receive in its group on this rank"),
        is_p2p=("Boolean", "whether it is a send or a receive"),
        operation=("String", "operation, such as `all_reduce` or `send 0->1` with ranks in the group"),
        backend=("String", "backend, such as `nccl`"),
        in_shapes=("List(List(Int64))", "shape of each input"),
        in_dtypes=("List(String)", "element type of each input"),
        out_shapes=("List(List(Int64))", "shape of each output"),
        out_dtypes=("List(String)", "element type of each output"),
        state=("String", "`scheduled`, `started` or `completed`; always `scheduled` with gloo"),
        is_retired=("Boolean", "whether the backend has finished with it, also by an error"),
        created_ns=("Int64", "when it was called, ns"),
        started_ns=("Int64", "when the recorder saw that it had started, ns; null if it did not"),
        completed_ns=("Int64", "when the recorder saw that it had ended, ns; null if it did not"),
        timeout_ns=("Int64", "longest time that it may take, ns"),
        thread=("String", "thread that called it"),
        stack=("Int64", "call stack in `recorded_stacks`; null if none was recorded"),
    ),
    _table(
        "recorded_groups",
        "One process group as a dump of the Flight Recorder lists it.",
        group=("String", "name"),
        description=("String", "use of the group"),
        ranks=("List(Int64)", "members"),
    ),
    _table(
        "recorded_status",
        "How far a rank is in a process group, as a dump states it even if all calls are overwritten.",
        group=("String", "name"),
        enqueued=("Int64", "number of the last call; with NCCL that of a collective, a send or a receive"),
    ),
    _table(
        "recorded_stacks",
        "One frame of a call stack in a dump of the Flight Recorder.",
        stack=("Int64", "number of the stack"),
        depth=("Int64", "place in it; 0 is the innermost"),
        function=("String", "function"),
        file=("String", "source file"),
        line=("Int64", "line"),
    ),
    _table(
        "nccl_records",
        "One collective or message that the NCCL Inspector timed on one rank; a sample of all.",
        communicator=("String", "hash of the communicator, the same on every rank"),
        communicator_name=("String", "name of the communicator; null if the program gave none"),
        communicator_rank=("Int64", "rank in the communicator"),
        ranks=("Int64", "ranks of the communicator"),
        nodes=("Int64", "nodes that it spans"),
        host=("String", "host of the process"),
        process=("Int64", "process id"),
        collective=("String", "canonical collective, `send` or `recv`"),
        sequence=("Int64", "running number among those of its kind in the communicator"),
        size_bytes=("Int64", "message as nccl-tests counts it, bytes"),
        time_ns=("Int64", "time it took, ns, of whole microseconds"),
        time_from=("String", "`kernel_gpu`, `kernel_cpu` or `collective_cpu`; empty if not stated"),
    ),
    _table(
        "requests",
        "One request of a serving benchmark, with the times that the client measured, unrounded.",
        benchmark=_BENCHMARK,
        tool=_TOOL,
        request=("String", "id as recorded, else its place in the file"),
        status=("String", "`ok`, `failed`, `cancelled` or `warmup`; only `ok` has times and tokens"),
        start_ns=("Int64", "when it was sent, ns; null if not recorded"),
        end_ns=("Int64", "when its last token came, ns; null if not recorded"),
        ttft_s=("Float64", "from sending it to its first token, s; null if it was not streamed"),
        latency_s=("Float64", "from sending it to its last token, s"),
        own_tpot_s=("Float64", "time per output token as the tool defines it, s"),
        input_tokens=("Int64", "tokens of the prompt"),
        output_tokens=("Int64", "tokens generated, the first included"),
        gaps_s=("List(Float64)", "times between consecutive chunks of output, s"),
        error=("String", "what went wrong, as recorded"),
    ),
    _table(
        "serving_statistics",
        "One number that the tool itself computed over all requests of a benchmark.",
        benchmark=_BENCHMARK,
        tool=_TOOL,
        quantity=(
            "String",
            "`ttft`, `tpot`, `itl`, `latency`, `own_tpot`, `duration`, `completed`, `input_tokens`, ...",
        ),
        statistic=("String", "`mean`, `p50`, ..., `std`; `total` where there is one number"),
        value=("Float64", "value, in s where it is a time"),
    ),
    _table(
        "serving_settings",
        "One setting of a serving benchmark other than its load, as the result or the file's name states it.",
        benchmark=_BENCHMARK,
        tool=_TOOL,
        setting=(
            "String",
            "`model`, `engine`, `precision`, `input_tokens`, `tp`, `prefill_devices`, ...; one value each",
        ),
        value=("String", "value as text"),
    ),
)

TABLES: Mapping[str, Table] = MappingProxyType({table.name: table for table in _TABLES})
"""Every raw table by name."""
