"""What a Kineto file says outside its events: identity, clock, devices, process groups."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto.pieces import repaired
from ccl_bench.trace.values import LATEST_NS, whole

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl

_MAX_METADATA = 64 << 20


def metadata(head: bytes, tail: bytes) -> tuple[dict[str, Any], bool]:
    """Return the top-level keys around the events, and whether none of them was lost.

    `head` ends before `"traceEvents"`, `tail` starts after the array closed; together, with an
    empty array between, they are one JSON object. A bare array of events has neither.
    """
    if len(head) + len(tail) > _MAX_METADATA:
        tail = b""
    opening = head.strip().removeprefix(codecs.BOM_UTF8).rstrip(b",") or b"{"
    closing = tail.strip().lstrip(b",").strip()
    joint = b"," if closing not in {b"", b"}"} and opening != b"{" else b""
    together = opening + joint + (closing or b"}")
    is_whole = bool(closing) or not head.strip()
    for repair in (bytes, repaired):
        if (found := _object(repair(together))) is not None:
            return found, is_whole
    return _by_pattern(head) | _by_pattern(tail) | (_object(opening + b"}") or {}), False


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _by_pattern(text: bytes) -> dict[str, Any]:
    """Return the two keys that everything depends on from text that does not parse."""
    found: dict[str, Any] = {}
    if base := re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\s*[,}]', text):
        found["baseTimeNanoseconds"] = int(base[1])
    if rank := re.search(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\s*[,}]', text):
        found["distributedInfo"] = {"rank": int(rank[1])}
    return found


def base_time_ns(meta: dict[str, Any]) -> int:
    """Return what the times in the file are relative to, ns since the epoch; 0 if absolute."""
    base = whole(meta.get("baseTimeNanoseconds"))
    return base if base is not None and 0 <= base < LATEST_NS else 0


def distributed(meta: dict[str, Any]) -> dict[str, Any]:
    """Return `distributedInfo`, or an empty mapping."""
    info = meta.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def rank(meta: dict[str, Any]) -> int | None:
    """Return the rank that the recording process had, if the file says."""
    return whole(distributed(meta).get("rank"))


def world_size(meta: dict[str, Any]) -> int | None:
    """Return the number of ranks in the recorded job, if the file says."""
    return whole(distributed(meta).get("world_size"))


def _entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def devices(meta: dict[str, Any]) -> pl.DataFrame:
    """Return the `devices` rows."""
    found = _entries(meta.get("deviceProperties"))
    return TABLES["devices"].frame(
        {
            "device": [whole(d.get("id")) for d in found],
            "name": [str(d.get("name", "")) for d in found],
            "memory_bytes": [whole(d.get("totalGlobalMem")) for d in found],
            "sms": [whole(d.get("numSms")) for d in found],
            "threads_per_sm": [
                whole(d.get("maxThreadsPerMultiprocessor", d.get("maxThreadsPerMultiProcessor")))
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
            "size": [whole(g.get("pg_size", g.get("group_count"))) for g in found],
            "ranks": [_ranks(g.get("ranks")) for g in found],
        }
    )


def _ranks(value: Any) -> list[int] | None:
    members = [whole(member) for member in value] if isinstance(value, list) else []
    return [m for m in members if m is not None] if members and None not in members else None


def attributes(meta: dict[str, Any]) -> dict[str, str]:
    """Return the versions and names that the file records."""
    job = distributed(meta)
    named = {key: job.get(key) for key in ("backend", "nccl_version")}
    versions = ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "host_name")
    named |= {key: meta.get(key) for key in versions}
    return {key: str(value) for key, value in named.items() if value is not None}
