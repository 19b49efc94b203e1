"""Small traces written by hand, and the tables that come of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.load import load_tables
from ccl_bench.result import Result
from ccl_bench.run import open_run

Event = dict[str, Any]


def event(category: str, name: str, start: float, end: float, tid: int = 1, **args: Any) -> Event:
    """Return an event of [start, end) in microseconds."""
    place = {"pid": 1, "tid": tid, "ts": start, "dur": end - start}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def op(name: str, start: float, end: float, tid: int = 1, **args: Any) -> Event:
    return event("cpu_op", name, start, end, tid, **args)


def note(name: str, start: float, end: float, tid: int = 1) -> Event:
    return event("user_annotation", name, start, end, tid)


def step(number: int, start: float, end: float) -> Event:
    return note(f"ProfilerStep#{number}", start, end)


def launch(correlation: int, start: float, end: float, tid: int = 1, name: str = "cudaLaunchKernel") -> Event:
    return event("cuda_runtime", name, start, end, tid, correlation=correlation)


def kernel(
    name: str, correlation: int, start: float, end: float, stream: int = 7, device: int = 0, **args: Any
) -> Event:
    place = {"correlation": correlation, "stream": stream, "device": device}
    return event("kernel", name, start, end, stream, **place, **args)


def copy(kind: str, size: int, correlation: int, start: float, end: float, stream: int = 7) -> Event:
    name, args = (
        f"Memcpy {kind} (Device -> Device)",
        {"correlation": correlation, "stream": stream, "bytes": size},
    )
    return event("gpu_memcpy", name, start, end, stream, **args)


def write(
    folder: Path,
    *ranks: Sequence[Event],
    device: str = "",
    backend: str = "nccl",
    has_group: bool = False,
    **facts: Any,
) -> Path:
    """Write a run with one trace a rank, and what `facts` of run_metadata.json are given.

    With `has_group` the traces state that the only process group is that of all ranks.
    """
    folder.mkdir(exist_ok=True)
    for rank, events in enumerate(ranks):
        document: dict[str, Any] = {
            "distributedInfo": {"rank": rank, "world_size": len(ranks), "backend": backend},
            "traceEvents": list(events),
        }
        if has_group:
            members = {"pg_size": len(ranks), "ranks": [*range(len(ranks))]}
            group = {"pg_name": "0", "pg_desc": "default_pg", **members}
            document["distributedInfo"] |= {"pg_count": 1, "pg_config": [group]}
        if device:
            document["deviceProperties"] = [{"id": 0, "name": device, "totalGlobalMem": 85_000_000_000}]
        (folder / f"kineto_trace_{rank}.json").write_text(json.dumps(document))
    if facts:
        (folder / "run_metadata.json").write_text(json.dumps(facts))
    return folder


def table(run: Path, name: str) -> pl.DataFrame:
    return tables(run, name)[name]


def tables(run: Path, *names: str) -> dict[str, pl.DataFrame]:
    found = load_tables(open_run(run), names, jobs=1)
    return {name: found.inputs[name] for name in names}


def results(run: Path, *metrics: str) -> dict[str, Result]:
    return {found.metric: found for found in evaluate(open_run(run), metrics, jobs=1)}


def result(run: Path, metric: str) -> Result:
    return results(run, metric)[metric]


def value(run: Path, metric: str) -> float:
    found = result(run, metric)
    assert found.status == "ok", found.reason
    assert found.value is not None
    return found.value
