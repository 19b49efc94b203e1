"""A run of two ranks and one step of 100 us, whose numbers can be worked out by hand.

Rank 0 gathers parameters from 10 to 30 us, rank 1 from 5 to 30: it waits 5 us. Both multiply from 20
to 60 (forward) and from 60 to 80 (backward), reduce gradients from 70 to 90, and update from 90 to 95.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

GATHERED = 1_000_000
"""Elements of the gathered buffer, of two bytes each."""

Event = dict[str, Any]


def _on_cpu(category: str, name: str, start: int, length: int) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}


def _kernel(number: int, name: str, launched: int, start: int, end: int, **more: Any) -> list[Event]:
    stream = 20 if "nccl" in name else 7
    launch = _on_cpu("cuda_runtime", "cudaLaunchKernel", launched, 1) | {"args": {"correlation": number}}
    arguments = {"correlation": number, "device": 0, "stream": stream, "blocks per SM": 0.5, **more}
    ran = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": end - start}
    return [launch, ran | {"args": arguments}]


def _call(collective: str, elements_in: int, elements_out: int, number: int) -> dict[str, Any]:
    return {
        "Collective name": collective,
        "In msg nelems": elements_in,
        "Out msg nelems": elements_out,
        "Group size": 2,
        "dtype": "BFloat16",
        "Process Group Name": "1",
        "Process Group Description": "mesh_dp_shard",
        "Process Group Ranks": "[0, 1]",
        "Seq": number,
    }


def _events(rank: int) -> list[Event]:
    gather = _call("_allgather_base", GATHERED // 2, GATHERED, 1)
    reduce = _call("_reduce_scatter_base", GATHERED, GATHERED // 2, 2)
    backward = "autograd::engine::evaluate_function: MmBackward0"
    return [
        _on_cpu("user_annotation", "ProfilerStep#1", 0, 100),
        _on_cpu("user_annotation", "FSDP::all_gather", 1, 3),
        *_kernel(1, "ncclDevKernel_AllGather_RING_LL(x)", 2, 10 if rank == 0 else 5, 30, **gather),
        _on_cpu("cpu_op", "aten::mm", 6, 2),
        *_kernel(2, "ampere_bf16_s16816gemm_bf16_128x128_tn", 7, 20, 60),
        _on_cpu("cpu_op", backward, 10, 10),
        *_kernel(3, "ampere_bf16_s16816gemm_bf16_64x64_nt", 12, 60, 80),
        _on_cpu("user_annotation", "FSDP::post_backward_reduce", 15, 4),
        *_kernel(4, "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", 16, 70, 90, **reduce),
        _on_cpu("user_annotation", "Optimizer.step#AdamW.step", 21, 4),
        *_kernel(5, "void at::native::vectorized_elementwise_kernel<4>(int)", 22, 90, 95),
    ]


def write(folder: Path) -> Path:
    """Write the traces, metadata and the allocator's counters of both ranks."""
    for rank in range(2):
        group = {"pg_name": "1", "pg_desc": "mesh_dp_shard", "pg_size": 2, "ranks": [0, 1]}
        said = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": [group]}
        device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84_987_740_160, "numSms": 108}
        content = {
            "schemaVersion": 1,
            "deviceProperties": [device],
            "distributedInfo": said,
            "traceEvents": _events(rank),
        }
        (folder / f"kineto_trace_{rank}.json").write_text(json.dumps(content))
    metadata = {"world_size": 2, "global_batch_size": 4, "seq_len": 512}
    (folder / "run_metadata.json").write_text(json.dumps(metadata))
    counters = {
        "allocated_bytes.all.peak": 60_000_000_000,
        "active_bytes.all.peak": 64_000_000_000,
        "reserved_bytes.all.peak": 80_000_000_000,
        "inactive_split_bytes.all.peak": 8_000_000_000,
        "allocation.all.allocated": 1000,
        "allocation.all.freed": 900,
        "num_alloc_retries": 1,
        "num_ooms": 0,
    }
    lower = counters | {"allocated_bytes.all.peak": 50_000_000_000}
    (folder / "memory_stats.json").write_text(json.dumps({"0": counters, "1": lower}))
    return folder
