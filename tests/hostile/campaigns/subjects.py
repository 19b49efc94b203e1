"""The undamaged runs of a campaign: small enough to be measured in less than two seconds each."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.chakra.protobuf import attribute, framed, message
from ccl_bench.testing import Experts, Plan, Style, write_run

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[3] / "examples" / "runs"
CORPUS_VARIABLE = "CCL_BENCH_CORPUS"


@dataclass(frozen=True, slots=True)
class Subject:
    """One run, and which of its files are of which kind."""

    name: str
    folder: Path
    files: dict[str, str]
    """File below the folder -> kind of file, a key of `kinds.KINDS`."""


def made(place: Path) -> list[Subject]:
    """Write every run that this machine can into `place`."""
    builders = [
        _generated,
        _packed,
        _example,
        _snapshot,
        _dumped,
        _export,
        _rocprof,
        _rocpd,
        _monitored,
        _served,
        _compared,
        _chakra,
        _inspected,
    ]
    corpus = os.environ.get(CORPUS_VARIABLE)
    found = [builder(place / builder.__name__.strip("_")) for builder in builders]
    return [*found, *_real(Path(corpus), place)] if corpus else found


def _generated(folder: Path) -> Subject:
    write_run(Plan(dp_shard=2, steps=3), folder)
    files = dict.fromkeys(("rank0_trace.json", "rank1_trace.json"), "kineto")
    return Subject(
        "generated", folder, files | {"workload_card.yaml": "card", "run_metadata.json": "side file"}
    )


def _packed(folder: Path) -> Subject:
    plan = Plan(dp_shard=2, ep=2, steps=2, experts=Experts(((60, 40), (80, 20))))
    write_run(plan, folder, style=Style(compresses=True, is_pretty=True), with_moe_assignments=True)
    files = dict.fromkeys(("rank0_trace.json.gz", "rank1_trace.json.gz"), "kineto")
    return Subject("packed", folder, files | {"moe_assignments.json": "side file"})


def _example(folder: Path) -> Subject:
    shutil.copytree(EXAMPLES / "llama-tiny-fsdp2-tp2-gloo", folder)
    side = ("run_metadata.json", "step_times_per_rank.json", "training_metrics.json")
    files = {"kineto_trace_0.json.gz": "kineto", "workload_card.yaml": "card"} | dict.fromkeys(
        side, "side file"
    )
    return Subject("example", folder, files)


def _snapshot(folder: Path) -> Subject:
    """Write a snapshot of one segment of 20 MiB, of which a block of 2 MiB comes, goes and comes again."""
    address, size, total = 0x7F00_0000_0000, 2 << 20, 20 << 20
    common = {"stream": 0, "frames": [{"filename": "train.py", "line": 3, "name": "step"}]}
    actions = [
        ("segment_alloc", total),
        *[("alloc", size), ("free_requested", size), ("free_completed", size)] * 4,
    ]
    actions.append(("alloc", size))
    events = [
        {"action": action, "addr": address, "size": bytes_, "time_us": 1_700_000_000_000_000 + 10 * at}
        | common
        for at, (action, bytes_) in enumerate(actions)
    ]
    used = {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": "active_allocated",
        "frames": [],
    }
    rest = used | {"address": address + size, "size": total - size, "requested_size": 0, "state": "inactive"}
    segment = {
        "device": 0,
        "address": address,
        "total_size": total,
        "allocated_size": size,
        "active_size": size,
    }
    segment |= {"requested_size": size, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0)}
    segment |= {"is_expandable": False, "frames": [], "blocks": [used, rest]}
    folder.mkdir(parents=True)
    content = {"segments": [segment], "device_traces": [events], "allocator_settings": {}}
    (folder / "rank0_memory_snapshot.pickle").write_bytes(pickle.dumps(content, protocol=4))
    return Subject("snapshot", folder, {"rank0_memory_snapshot.pickle": "snapshot"})


def _export(folder: Path) -> Subject:
    """Write an export of 300 kernels of 50 us on two streams, of which the second holds NCCL's."""
    folder.mkdir(parents=True)
    owner = 1 << 48 | 145 << 24
    names = [
        "gemm",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "cudaLaunchKernel",
    ]
    kernels = [(n * 80_000, n * 80_000 + 50_000, owner, 0, 7 + n % 2, n, 1 + n % 2) for n in range(300)]
    calls = [(start - 9_000, start - 5_000, owner | 7, n, 3) for start, _, _, _, _, n, _ in kernels]
    with sqlite3.connect(folder / "report.sqlite") as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
        kernel = "start INTEGER, end INTEGER, globalPid INTEGER, deviceId INTEGER, streamId INTEGER"
        kernel += ", correlationId INTEGER, demangledName INTEGER"
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({kernel})")
        runtime = "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER"
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME ({runtime})")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names, 1))
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)")
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", kernels)
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", calls)
    database.close()
    return Subject("export", folder, {"report.sqlite": "database"})


def _rocpd(folder: Path) -> Subject:
    """Write a database of rocprofv3 with 40 kernels of 50 us and the launch of each."""
    folder.mkdir(parents=True)
    work = (
        "tid, agent_id, kernel_id, queue_id, stream_id, start, end, workgroup_size_x, grid_size_x, event_id"
    )
    layout = {
        "string": "id INTEGER PRIMARY KEY, string TEXT",
        "info_process": "id INTEGER PRIMARY KEY, pid INTEGER, environment TEXT",
        "info_agent": "id INTEGER PRIMARY KEY, type TEXT, type_index INTEGER, extdata TEXT",
        "info_kernel_symbol": "id INTEGER PRIMARY KEY, display_name TEXT",
        "event": "id INTEGER PRIMARY KEY, category_id INTEGER, stack_id INTEGER, extdata TEXT",
        "region": "id INTEGER PRIMARY KEY, tid INTEGER, start INTEGER, end INTEGER, name_id INTEGER, "
        "event_id INTEGER",
        "kernel_dispatch": f"id INTEGER PRIMARY KEY, {work}",
    }
    rows: dict[str, list[tuple[object, ...]]] = {
        "string": [(1, "HIP_RUNTIME_API_EXT"), (2, "hipLaunchKernel"), (3, "KERNEL_DISPATCH")],
        "info_process": [(7, 7, '{"RANK": "0", "WORLD_SIZE": "1"}')],
        "info_agent": [(1, "GPU", 0, '{"cu_count": 304}')],
        "info_kernel_symbol": [(1, "gemm"), (2, "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)")],
        "event": [(n, 1 if n <= 40 else 3, (n - 1) % 40 + 1, "{}") for n in range(1, 81)],
        "region": [(n, 7, 10**15 + n * 80_000 - 9_000, 10**15 + n * 80_000, 2, n) for n in range(1, 41)],
        "kernel_dispatch": [
            (n, 7, 1, 1 + n % 2, 1, 1, 10**15 + n * 80_000, 10**15 + n * 80_000 + 50_000, 64, 6400, 40 + n)
            for n in range(1, 41)
        ],
    }
    with sqlite3.connect(folder / "results.db") as database:
        for name, columns in layout.items():
            database.execute(f"CREATE TABLE rocpd_{name}_ab ({columns})")
            marks = ",".join("?" * len(rows[name][0]))
            database.executemany(f"INSERT INTO rocpd_{name}_ab VALUES ({marks})", rows[name])
    database.close()
    return Subject("rocpd", folder, {"results.db": "rocpd"})


def _monitored(folder: Path) -> Subject:
    """Write a run of one rank, and what nvidia-smi logged of its device ten times a second."""
    write_run(Plan(steps=3), folder)
    rows = [
        f"{1_700_000_000 + n / 10:.1f}, 0, {300 + n % 7}.00 W, 1980 MHz, 0x0000000000000004"
        for n in range(99)
    ]
    header = "timestamp, index, power.draw [W], clocks.current.sm [MHz], clocks_event_reasons.active"
    (folder / "smi.csv").write_text("\n".join([header, *rows]))
    return Subject("monitored", folder, {"smi.csv": "samples"})


def _rocprof(folder: Path) -> Subject:
    """Write a file of rocprofv3 with 40 kernels of 50 us, the launch of each, and ranges around ten."""
    folder.mkdir(parents=True)

    def record(kind: int, start: int, length: int, call: int) -> dict[str, object]:
        times = {"start_timestamp": 10**15 + start, "end_timestamp": 10**15 + start + length}
        return {"kind": kind, "operation": 0, "thread_id": 7, "correlation_id": {"internal": call}} | times

    info = {"agent_id": {"handle": 2}, "queue_id": {"handle": 3}, "workgroup_size": {"x": 64, "y": 1, "z": 1}}
    info |= {"grid_size": {"x": 6400, "y": 1, "z": 1}}
    found = {
        "kernel_dispatch": [
            record(1, n * 80_000, 50_000, n) | {"dispatch_info": info | {"kernel_id": 1 + n % 2}}
            for n in range(1, 41)
        ],
        "hip_api": [record(0, n * 80_000 - 9_000, 4_000, n) for n in range(1, 41)],
        "marker_api": [record(2, n * 800_000 + 60_000, 790_000, 1000 + n) for n in range(4)],
    }
    names = ["HIP_RUNTIME_API", "KERNEL_DISPATCH", "MARKER_CORE_RANGE_API"]
    strings = {
        "buffer_records": [{"kind": name, "operations": [f"operation of {name}"]} for name in names],
        "marker_api": [{"key": 1000 + n, "value": f"step {n}"} for n in range(4)],
    }
    process = {
        "metadata": {"pid": 7},
        "agents": [{"id": {"handle": 2}, "type": 2, "product_name": "AMD Instinct MI300X", "cu_count": 304}],
        "strings": strings,
        "kernel_symbols": [
            {"kernel_id": n, "formatted_kernel_name": name}
            for n, name in enumerate(
                ["", "gemm", "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"]
            )
        ],
        "buffer_records": found,
    }
    text = json.dumps({"rocprofiler-sdk-tool": [process]})
    (folder / "rank0_results.json").write_text(text)
    return Subject("rocprof", folder, {"rank0_results.json": "rocprof"})


def _served(folder: Path) -> Subject:
    """Write a result of vLLM's benchmark with 60 requests."""
    folder.mkdir(parents=True)
    whole = {
        "date": "20260101-000000",
        "backend": "vllm",
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": 60,
    }
    whole |= {"request_rate": "inf", "duration": 20.0, "completed": 60, "errors": [""] * 60}
    whole |= {"input_lens": [10 + n for n in range(60)], "output_lens": [3] * 60}
    whole |= {"ttfts": [0.1 + n / 1000 for n in range(60)], "itls": [[0.02, 0.03]] * 60}
    (folder / "serving.json").write_text(json.dumps(whole))
    return Subject("served", folder, {"serving.json": "serving"})


def _compared(folder: Path) -> Subject:
    """Write a run beside what nccl-tests printed on its machine."""
    write_run(Plan(tp=2, steps=2), folder)
    ranks = [f"#  Rank  {rank} Group  0 Pid  7 on node0 device  {rank} [0000:01:00] A100" for rank in (0, 1)]
    head = "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong"
    sizes = [(8 << power, 20 + (8 << power) / 2e5) for power in range(25)]
    half = [f"{time:.2f} {size / time / 1e3:.2f} {size / time / 1e3:.2f} 0" for size, time in sizes]
    rows = [
        f"{size} {size // 4} float sum -1 {row} {row}" for (size, _), row in zip(sizes, half, strict=True)
    ]
    text = ["# Collective test starting: all_reduce_perf", "# nThread 1 nGpus 2", *ranks, head, *rows]
    (folder / "all_reduce.txt").write_text("\n".join(text))
    return Subject("compared", folder, {"all_reduce.txt": "table"})


def _dumped(folder: Path) -> Subject:
    """Write dumps of the Flight Recorder of two ranks, 20 all-reduces each, of which the last waits."""
    folder.mkdir(parents=True)
    tensors = {
        f"{side}_{what}": [value]
        for side in ("input", "output")
        for what, value in (("sizes", [8, 4]), ("dtypes", "Float"))
    }
    call = tensors | {
        "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
        "is_p2p": False,
    }
    call |= {"p2p_seq_id": 0, "timeout_ms": 600_000, "frames": [{"name": "f", "filename": "a.py", "line": 3}]}
    for rank in range(2):
        entries = [
            call
            | {"record_id": n, "collective_seq_id": n + 1, "time_created_ns": 10**18 + n * 10**6 + rank}
            | {"state": "scheduled" if n == 19 else "completed", "retired": n < 19}
            | {"time_discovered_completed_ns": None if n == 19 else 10**18 + n * 10**6 + 500}
            for n in range(20)
        ]
        groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        content = {"version": "2.10", "pg_config": groups, "comm_lib_version": "2.27", "entries": entries}
        (folder / f"comm_lib_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return Subject("dumped", folder, dict.fromkeys((path.name for path in folder.iterdir()), "dump"))


def _chakra(folder: Path) -> Subject:
    """Write a Chakra execution trace of 40 operators, each with an all-reduce below it."""
    folder.mkdir(parents=True)
    found = [framed(message("GlobalMetadata")(version="0.0.4", attr=[attribute("rank", "uint64", 0)]))]
    for number in range(1, 41):
        found.append(framed(message("Node")(id=number, name="aten::mm", type=4)))
        call = message("Node")(id=100 + number, name="ncclDevKernel", type=7, ctrl_deps=[number])
        call.attr.extend(attribute(name, "int64", 4096) for name in ("comm_size", "pg_size"))
        call.attr.append(attribute("comm_type", "int64", 0))
        found.append(framed(call))
    (folder / "chakra.0.et").write_bytes(b"".join(found))
    return Subject("chakra", folder, {"chakra.0.et": "chakra"})


def _inspected(folder: Path) -> Subject:
    """Write records of the NCCL Inspector of two ranks, 200 all-reduces each."""
    folder.mkdir(parents=True)
    for rank in range(2):
        header = {"id": "0x7f", "rank": rank, "n_ranks": 2, "nnodes": 1}
        metadata = {"inspector_output_format_version": "v4.0", "hostname": "node0", "pid": rank}
        lines = []
        for number in range(200):
            perf = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1 << 20}
            perf |= {"coll_exec_time_us": 100 + rank, "coll_timing_source": "kernel_gpu"}
            lines.append(json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}))
        (folder / f"node0-pid{rank}.log").write_text("\n".join(lines))
    return Subject("inspected", folder, dict.fromkeys(("node0-pid0.log", "node0-pid1.log"), "records"))


def _real(corpus: Path, place: Path) -> Iterator[Subject]:
    """Yield runs that others recorded."""
    yield _copied(
        place / "dlrm",
        {corpus / f"kineto/dlrm-8rank/worker{rank}_step_12.pt.trace.json.gz": "kineto" for rank in range(2)}
        | {
            corpus / f"execution_trace/dlrm-8rank/dlrm_eg_{rank}.json.gz": "execution trace"
            for rank in range(2)
        },
    )
    yield _copied(place / "nccl", {corpus / "kineto/nccl-args/rank0.nccl_data.json.gz": "kineto"})
    yield _copied(
        place / "megatron",
        {corpus / f"kineto/megatron-tp8/megatron_kineto_{rank}.json.gz": "kineto" for rank in range(2)}
        | {
            corpus / f"execution_trace/megatron-tp8/megatron_et_{rank}.json.gz": "execution trace"
            for rank in range(2)
        },
    )
    cpu, tpu = corpus / "xplane/cpu-2x2-gloo", corpus / "xplane/tpu-v6e-4of8/host0.xplane.pb"
    yield _copied(place / "xla", {cpu / "p0/vm.xplane.pb": "profile"})
    yield _copied(place / "xla-tpu", {tpu: "profile"})
    yield _copied(place / "jax", {corpus / "xplane/cpu-2x2-gloo/p0/vm.trace.json.gz": "viewer trace"})
    yield _copied(place / "recorded-snapshot", {corpus / "memory/rank0_memory_snapshot.pickle": "snapshot"})
    for name in (
        "tiny/rtx3080_tiny",
        "two-gpu-sendrecv/mfu_2gpu_before",
        "cuda-graphs/result_2_7B_compile_ro",
    ):
        yield _copied(place / f"nsys-{name.partition('/')[0]}", {corpus / f"nsys/{name}.sqlite": "database"})
    genai = "genai-bench/D100_100_text-to-text_num_concurrency_1_time_120s.json"
    for name in (genai, "llmperf/individual_bedrock_70b.json"):
        yield _copied(place / f"serving-{name.partition('/')[0]}", {corpus / "serving" / name: "serving"})
    yield _copied(place / "serving-aiperf", {corpus / "serving/aiperf/profile_export.jsonl": "serving lines"})


def _copied(folder: Path, files: dict[Path, str]) -> Subject:
    folder.mkdir(parents=True)
    for path in files:
        shutil.copyfile(path, folder / path.name)
    return Subject(folder.name, folder, {path.name: kind for path, kind in files.items()})
