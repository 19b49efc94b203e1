"""Write small runs with a GPU, whose numbers can be worked out by hand.

One step of 100 us on one rank: compute from 10 to 50, an all-reduce from 40 to 80 on another stream, so
compute 40, communication 40, both 10, busy 70, idle 30.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"

FSDP = EXAMPLES / "llama-tiny-fsdp2-tp2-gloo"
PIPELINE = EXAMPLES / "llama-tiny-pp4-gloo"

TRACE_METRICS = ("coll_call_num", "comm_comp_overlap", "gpu_busy", "gpu_idle", "sm")

NVIDIA_A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84_987_740_160, "numSms": 108}


def step_events(
    number: int, at: int, *, calls: int = 1, length: int = 100, on_device: bool = True
) -> list[dict]:
    """Return the events of one step that starts at `at`, us."""
    common = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        common | {"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": length},
        common
        | {"cat": "cpu_op", "name": "aten::mm", "ts": at + 4, "dur": 4, "args": {"External id": number}},
    ]
    if not on_device:
        return events
    kernels = [
        ("gemm", 10, 40, 7, 0.5),
        *[("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 40, 40, 20 + call, 0.1) for call in range(calls)],
    ]
    for position, (name, start, duration, stream, blocks) in enumerate(kernels):
        correlation = at * 10 + position + 1
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 1}
        launch |= {"ts": at + 5 + position / 1000}
        arguments = {"correlation": correlation, "device": 0, "stream": stream, "blocks per SM": blocks}
        events.append(common | launch | {"args": {"correlation": correlation}})
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream}
            | {"ts": at + start, "dur": duration, "args": arguments}
        )
    return events


def trace(
    rank: int | None, *, world: int | None = 2, steps: tuple[int, ...] = (1,), at: int = 0, **more
) -> dict:
    """Return the trace of one rank with the steps one after the other."""
    events = [
        event for index, number in enumerate(steps) for event in step_events(number, at + 200 * index, **more)
    ]
    identity = {"backend": "nccl", "rank": rank, "world_size": world}
    known = {key: value for key, value in identity.items() if value is not None}
    return {
        "schemaVersion": 1,
        "deviceProperties": [NVIDIA_A100],
        "distributedInfo": known,
        "traceEvents": events,
    }


def write(path: Path, content: object) -> Path:
    """Write JSON, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_ranks(folder: Path, ranks: int = 2, **more) -> Path:
    """Write one trace for each rank."""
    for rank in range(ranks):
        write(folder / f"kineto_trace_{rank}.json", trace(rank, world=ranks, at=rank, **more))
    return folder


def copied(run: Path, folder: Path) -> Path:
    """Copy an example run."""
    return Path(shutil.copytree(run, folder / run.name))


def cut_short(path: Path, share: float = 0.5) -> None:
    """Leave only the first part of a trace, as a job killed while writing does."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    part = text[: int(len(text) * share)]
    path.write_bytes(gzip.compress(part, 1) if path.suffix == ".gz" else part)


def make_unreadable(path: Path, rank: int = 0) -> None:
    """Keep only what makes a file look like the trace of a rank."""
    write(path, {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": 5})


def measured(folder: Path, *names: str, **more) -> list:
    """Return the results of metrics for a run, read anew."""
    return evaluate(open_run(folder), names, use_cache=False, jobs=1, **more)


def codes(result) -> list[str]:
    """Return the codes of a result's findings, sorted."""
    return sorted(finding.code for finding in result.findings)
