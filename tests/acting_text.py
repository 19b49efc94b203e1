"""Text that acts rather than shows, and a run in which a stranger placed it wherever there is text."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

from commands import recorded_by

if TYPE_CHECKING:
    from pathlib import Path

ACTS = (
    "\x1b]0;x\x07\x08\x0c\x7f\x85\x9b2J\u061c\u200b\u200e\u200f\u202a\u202e\u2028\u2029\u2060\u2066\u2069"
    "\u00ad\u115f\u3164\ufeff\ufff9\U000e0041\U000e0100"
)
"""A title of a terminal, and one of each kind of what turns, hides, cuts and smuggles text."""
ACTING = re.compile(
    "[" + "".join(char for char in ACTS if not char.isascii() or not char.isprintable()) + "]"
)
NAME = f"n{ACTS}n"


def _hostile(value: Any) -> Any:
    """Return what a trace states with such a text in all of its names."""
    if isinstance(value, dict):
        kept = {"ph", "cat", "schemaVersion", "displayTimeUnit", "backend", "dtype", "Input type"}
        return {key: each if key in kept else _hostile(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_hostile(each) for each in value]
    if isinstance(value, str) and not re.match(r"ProfilerStep|process_|thread_|gloo:|nccl|\d", value):
        return f"{value} {NAME}"
    return value


def write_hostile_run(run: Path, *ranks: int) -> Path:
    """Write a run in which kernels, groups, card and side files are named by a stranger."""
    recorded_by(ranks, run)
    for trace in run.glob("*.json.gz"):
        content = _hostile(json.loads(gzip.decompress(trace.read_bytes())))
        trace.write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    card = (run / "workload_card.yaml").read_text(encoding="utf-8")
    for stated in ("llama-tiny", "pytorch FSDP2", "The ccl-bench developers", "x86-64", "synthetic", "tcp"):
        card = card.replace(stated, json.dumps(stated + NAME, ensure_ascii=True), 1)
    card = card.replace("env: {}", f"env: {{NCCL_{json.dumps(NAME)[1:-1]}: 1}}".replace("NCCL_", '"NCCL_', 1))
    (run / "workload_card.yaml").write_text(card.replace(": 1}", '": 1}'), encoding="utf-8")
    metadata = json.loads((run / "run_metadata.json").read_bytes())
    (run / "run_metadata.json").write_text(json.dumps({**metadata, NAME: NAME, "framework": NAME}))
    (run / "memory_stats.json").write_text(json.dumps({NAME: [NAME]}))
    return run
