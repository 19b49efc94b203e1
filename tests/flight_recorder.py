"""Dumps of torch's Flight Recorder as tests make them up, with the fields of `FlightRecorderDetail.hpp`."""

from __future__ import annotations

import io
import json
import pickle
from typing import TYPE_CHECKING

import polars as pl

from ccl_bench.schema import KEYS, TABLES
from ccl_bench.trace.formats.flight_recorder.reader import read_dump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MS = 1_000_000
BEGIN_NS = 1_795_315_951_000_000_000


def call(
    operation: str,
    sequence: int,
    *,
    record: int | None = None,
    group: tuple[str, str] = ("0", "default_pg"),
    shape: Sequence[int] = (8,),
    at_ms: float = 0,
    state: str = "scheduled",
    ended_ms: float | None = None,
    is_retired: bool = False,
    line: int = 10,
    group_id: int = 0,
    backend: str = "nccl",
) -> dict[str, object]:
    """Return one entry; `record` is its place among those of its rank by default."""
    is_p2p = operation.partition(" ")[0] in {"send", "recv"}
    tensors = {"sizes": [list(shape)], "dtypes": ["Float"]}
    given = not operation.startswith("recv")
    taken = not operation.startswith("send")
    inner = {
        "name": "all_reduce",
        "filename": "/opt/lib/python3.12/site-packages/torch/distributed/c.py",
        "line": 1,
    }
    return {
        "record_id": record,
        "pg_id": group_id,
        "process_group": group,
        "collective_seq_id": 0 if is_p2p else sequence,
        "p2p_seq_id": sequence if is_p2p else 0,
        "op_id": sequence,
        "profiling_name": f"{backend}:{operation}",
        "time_created_ns": BEGIN_NS + round(at_ms * MS),
        "input_sizes": tensors["sizes"] if given else [],
        "input_dtypes": tensors["dtypes"] if given else [],
        "output_sizes": tensors["sizes"] if taken else [],
        "output_dtypes": tensors["dtypes"] if taken else [],
        "state": "completed" if ended_ms is not None else state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None if ended_ms is None else BEGIN_NS + round(ended_ms * MS),
        "retired": is_retired or ended_ms is not None,
        "timeout_ms": 600_000,
        "is_p2p": is_p2p,
        "frames": [inner, {"name": "train", "filename": "/src/train.py", "line": line}],
    }


def dump(
    calls: Sequence[dict[str, object]],
    groups: Mapping[str, Sequence[int]] | None = None,
    status: Mapping[int, int] | None = None,
) -> dict[str, object]:
    """Return a dump with these calls, the groups {name: members} that it lists, and {group id: last call}."""
    numbered = [
        {**each, "record_id": place if each["record_id"] is None else each["record_id"]}
        for place, each in enumerate(calls)
    ]
    config = {
        name: {"name": name, "desc": f"desc of {name}", "ranks": str(list(ranks))}
        for name, ranks in (groups or {}).items()
    }
    return {
        "version": "2.10",
        "pg_config": config,
        "pg_status": {
            str(number): {
                "last_enqueued_collective": last,
                "last_started_collective": -1,
                "last_completed_collective": last - 1,
            }
            for number, last in (status or {}).items()
        },
        "comm_lib_version": "",
        "entries": numbered,
    }


def write_dumps(folder: Path, dumps: Mapping[int, dict[str, object]]) -> Path:
    """Write {rank: dump} as torch names and writes them, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, content in dumps.items():
        (folder / f"comm_lib_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def tables_of(dumps: Mapping[int, dict[str, object] | bytes]) -> dict[str, pl.DataFrame]:
    """Return the tables of {rank: dump or its JSON}, as a run has them."""
    names = ("recorder_dumps", "recorded_calls", "recorded_groups", "recorded_status", "recorded_stacks")
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in names}
    for trace, (rank, content) in enumerate(dumps.items()):
        code = content if isinstance(content, bytes) else json.dumps(content).encode()
        read = read_dump(io.BytesIO(code), f"rank_{rank}.json")
        keys = {"trace": trace, "rank": rank, "iteration": None}
        columns = [pl.lit(keys[name], dtype=column.type).alias(name) for name, column in KEYS.items()]
        for name in names:
            parts[name].append(read.table(name).select(*columns, *TABLES[name].columns))
    return {name: pl.concat(tables) for name, tables in parts.items()}
