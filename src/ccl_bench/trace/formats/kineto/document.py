"""What a Kineto file says outside its events: identity, clock, devices, process groups."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from ccl_bench.frames import pl

_MAX_METADATA = 64 << 20


def metadata(head: bytes, tail: bytes) -> dict[str, Any]:
    """Return the top-level keys around the events; what is damaged is left out.

    `head` ends before `"traceEvents"`, `tail` starts after the array closed; together, with an
    empty array between, they are one JSON object.
    """
    if len(head) + len(tail) > _MAX_METADATA:
        tail = b""
    opening = head.strip().rstrip(b",") or b"{"
    closing = tail.strip().lstrip(b",").strip()
    joint = b"," if closing not in {b"", b"}"} and opening != b"{" else b""
    for text in (opening + joint + (closing or b"}"), opening + b"}"):
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return _by_pattern(head)


def _by_pattern(head: bytes) -> dict[str, Any]:
    """Return the two keys that everything depends on from a head that does not parse."""
    found: dict[str, Any] = {}
    if base := re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d+)', head):
        found["baseTimeNanoseconds"] = int(base[1])
    if rank := re.search(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d+)', head):
        found["distributedInfo"] = {"rank": int(rank[1])}
    return found


def base_time_ns(meta: dict[str, Any]) -> int:
    """Return what the times in the file are relative to, ns since the epoch; 0 if absolute."""
    base = meta.get("baseTimeNanoseconds", 0)
    return int(base) if isinstance(base, int | str) and str(base).isdecimal() else 0


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def distributed(meta: dict[str, Any]) -> dict[str, Any]:
    """Return `distributedInfo`, or an empty mapping."""
    info = meta.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def rank(meta: dict[str, Any]) -> int | None:
    """Return the rank that the recording process had, if the file says."""
    return _whole(distributed(meta).get("rank"))


def world_size(meta: dict[str, Any]) -> int | None:
    """Return the number of ranks in the recorded job, if the file says."""
    return _whole(distributed(meta).get("world_size"))


def _entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def devices(meta: dict[str, Any]) -> pl.DataFrame:
    """Return the `devices` rows."""
    found = _entries(meta.get("deviceProperties"))
    return TABLES["devices"].frame(
        {
            "device": [_whole(d.get("id")) for d in found],
            "name": [str(d.get("name", "")) for d in found],
            "memory_bytes": [_whole(d.get("totalGlobalMem")) for d in found],
            "sms": [_whole(d.get("numSms")) for d in found],
            "threads_per_sm": [
                _whole(d.get("maxThreadsPerMultiprocessor", d.get("maxThreadsPerMultiProcessor")))
                for d in found
            ],
        }
    )


def process_groups(meta: dict[str, Any]) -> pl.DataFrame:
    """Return the `process_groups` rows, from `distributedInfo.pg_config`."""
    config = distributed(meta).get("pg_config")
    found = _entries(list(config.values()) if isinstance(config, dict) else config)
    return TABLES["process_groups"].frame(
        {
            "name": [str(g.get("pg_name", "")) for g in found],
            "description": [str(g.get("pg_desc", "")) for g in found],
            "backend": [str(g.get("backend_config", g.get("backend", ""))) for g in found],
            "size": [_whole(g.get("pg_size", g.get("group_count"))) for g in found],
            "ranks": [_ranks(g.get("ranks")) for g in found],
        }
    )


def _ranks(value: Any) -> list[int] | None:
    if isinstance(value, list) and value and all(_whole(member) is not None for member in value):
        return value
    return None


def attributes(meta: dict[str, Any]) -> dict[str, str]:
    """Return the versions and names that the file records."""
    named = {"backend": distributed(meta).get("backend"), "nccl_version": distributed(meta).get("nccl_version")}
    named |= {key: meta.get(key) for key in ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version")}
    return {key: str(value) for key, value in named.items() if value is not None}
