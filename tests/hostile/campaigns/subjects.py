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
    builders = [_generated, _packed, _example, _snapshot, _export, _served]
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
