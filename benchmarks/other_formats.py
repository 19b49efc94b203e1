"""Write larger files of other formats than Kineto, from real ones."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import inputs

if TYPE_CHECKING:
    from pathlib import Path

    from inputs import Input

SERVING = "serving/vllm-tp8"
SNAPSHOT = "memory/rank0_memory_snapshot.pickle"
EXECUTION_TRACE = "execution_trace/gloo-fsdp2-tp2-args/rank0_et.json.gz"
_SECOND_US = 1_000_000


def other_formats(corpus: Path, folder: Path, *, quick: bool) -> list[Input]:
    """Return a file of each format: 240 MB of Nsight Systems', 20 to 40 MB of the others, or a tenth."""
    folder.mkdir(parents=True, exist_ok=True)
    share = 10 if quick else 1
    export, snapshot, trace = corpus / inputs.EXPORT, corpus / SNAPSHOT, corpus / EXECUTION_TRACE
    serving = sorted((corpus / SERVING).glob("*.json"))[0]
    kind = f"-{share}"
    files = {
        "nsys": (export, inputs.repeated_export(export, folder / f"nsys{kind}.sqlite", 110 // share)),
        "serving": (serving, _serving(serving, folder / f"serving{kind}.json", 30 // share)),
        "memory snapshot": (snapshot, _snapshot(snapshot, folder / f"snapshot{kind}.pickle", 30 // share)),
        "Execution Trace": (trace, _execution_trace(trace, folder / f"et{kind}.json", 6 // share or 1)),
    }
    return [replace(inputs.sized(name, (file,)), warm_up=source) for name, (source, file) in files.items()]


def _serving(source: Path, target: Path, copies: int) -> Path:
    """Write a serving benchmark with every request repeated this often."""
    if not target.exists():
        benchmark = json.loads(source.read_text())
        more = {name: value * copies for name, value in benchmark.items() if isinstance(value, list)}
        counts = ("completed", "num_prompts", "total_input_tokens", "total_output_tokens", "duration")
        more |= {name: benchmark[name] * copies for name in counts if name in benchmark}
        target.write_text(json.dumps(benchmark | more))
    return target


def _snapshot(source: Path, target: Path, copies: int) -> Path:
    """Write a snapshot with its history repeated this often."""
    if not target.exists():
        snapshot = pickle.loads(source.read_bytes())  # of our own corpus
        snapshot["device_traces"] = [_later(history, copies) for history in snapshot["device_traces"]]
        target.write_bytes(pickle.dumps(snapshot, protocol=4))
    return target


def _later(history: list[dict[str, Any]], copies: int) -> list[dict[str, Any]]:
    times = [event["time_us"] for event in history if "time_us" in event]
    stride = max(times, default=0) - min(times, default=0) + _SECOND_US
    return [
        event | ({"time_us": event["time_us"] + copy * stride} if "time_us" in event else {})
        for copy in range(copies)
        for event in history
    ]


def _execution_trace(source: Path, target: Path, copies: int) -> Path:
    """Write an Execution Trace with every node repeated this often, each with a separate number."""
    if not target.exists():
        trace = json.loads(gzip.decompress(source.read_bytes()))
        stride = max(node["id"] for node in trace["nodes"]) + 1
        moved = [
            node | {name: node[name] + copy * stride for name in ("id", "ctrl_deps") if name in node}
            for copy in range(copies)
            for node in trace["nodes"]
        ]
        target.write_text(json.dumps(trace | {"nodes": moved}, separators=(",", ":")))
    return target
