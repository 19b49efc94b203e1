"""The text of a Kineto file: events, piece by piece, and the metadata around them.

A trace is `{head "traceEvents": [ event, event, ... ] tail}` or, as other writers have it, a bare list of
events.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

from ccl_bench.schema import TABLES
from ccl_bench.trace.json_array import (
    STRING,
    ArrayForm,
    Piece,
    array_end,
    array_pieces,
    open_brackets,
    repaired_piece,
    repaired_text,
)
from ccl_bench.trace.process_groups import recorded_numbers
from ccl_bench.trace.values import LATEST_NS, json_value, whole

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.formats.kineto.rows import RowBuilder
    from ccl_bench.trace.json_array import Document

BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat|pid|tid|ts|args|bp)\"\s*:)")
EVENTS = ArrayForm(
    start=re.compile(rb'"traceEvents"\s*:\s*\['),
    boundary=BOUNDARY,
    item="event",
    # A quote before a colon or comma is the end of a name that another writer has torn.
    name=re.compile(
        rb'("name"\s*:\s*")((?:(?!"name"\s*:|"\s*[:,]).)*?)'
        rb'("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|id|args)"\s*:|\}))',
        re.DOTALL,
    ),
    separators=(b"\n  },\n  {", b'},{"', b"},\n{", b"}, {", b"},\n"),
    may_be_bare=True,
)

_TAIL_LIMIT = 64 << 20
"""Bytes kept of the text behind the events, which may be a second trace as large as the first."""


def read_events(stream: BinaryIO, document: Document, rows: RowBuilder) -> None:
    """Give the events of a file to `rows`, those of one piece at a time, and fill `document`."""
    unfinished: Piece | None = None
    pieces = array_pieces(stream, document, EVENTS)
    for piece in pieces:
        if unfinished:
            piece = Piece(unfinished.offset, unfinished.text + b"," + piece.text, piece.is_last)
            unfinished = None
        if (end := rows.take(piece.text, must_end=piece.is_last)) is None:
            damaged, end = piece, len(piece.text)
            if piece.is_last:
                closing = _array_end(piece.text)
                document.is_truncated = closing is None
                if closing is not None:
                    damaged, end = piece._replace(text=piece.text[:closing]), closing + 1
            text, unfinished = repaired_piece(
                damaged, document, EVENTS, rows.readable, may_go_on=not piece.is_last
            )
            rows.take(text)
        if end < len(piece.text) or piece.is_last:
            document.tail = piece.text[end:]
            for further in pieces:  # text that was cut as if it held events too
                if len(document.tail) < _TAIL_LIMIT:
                    document.tail += b"," + further.text
            return


_MARK = re.compile(STRING + rb"|([\[\]{}])", re.DOTALL)


def _array_end(text: bytes) -> int | None:
    """Return the place of the bracket that closes the array of events, or None if it does not end.

    Where what follows it is cut off too, it is the bracket that closes more than was opened, unless
    events follow it.
    """
    if (end := array_end(text)) is not None or open_brackets(text) >= 0:
        return end
    depth = 0
    for mark in _MARK.finditer(text):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(mark[1], 0)
        if depth < 0:
            at = mark.start()
            return at if mark[1] == b"]" and not BOUNDARY.search(text, at) else None
    return None


_MAX_METADATA = 64 << 20
"""Bytes of metadata that are decoded: real ones have some thousand."""
_BASE_TIME = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\s*[,}]')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\s*[,}]')


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
    for repair in (bytes, repaired_text):
        if isinstance(decoded := json_value(repair(together)), dict):
            return decoded, is_whole
    # What does not parse still shows the two keys that everything depends on; the last one of each counts.
    values: dict[str, Any] = {}
    for text in (head, tail):
        if base := _BASE_TIME.search(text):
            values["baseTimeNanoseconds"] = int(base[1])
        if rank := _RANK.search(text):
            values["distributedInfo"] = {"rank": int(rank[1])}
    of_head = json_value(opening + b"}")
    return values | of_head if isinstance(of_head, dict) else values, False


def base_time_ns(meta: dict[str, Any]) -> int:
    """Return the time that those in the file are relative to, ns since the epoch; 0 if absolute."""
    base = whole(meta.get("baseTimeNanoseconds"))
    return base if base is not None and 0 <= base < LATEST_NS else 0


def distributed(meta: dict[str, Any]) -> dict[str, Any]:
    """Return `distributedInfo`, what the recording process knew of its job, or an empty mapping."""
    info = meta.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def devices(meta: dict[str, Any]) -> pl.DataFrame:
    """Return the `devices` rows."""
    entries = _entries(meta.get("deviceProperties"))
    return TABLES["devices"].frame(
        {
            "device": [whole(d.get("id")) for d in entries],
            "name": [str(d.get("name", "")) for d in entries],
            "memory_bytes": [whole(d.get("totalGlobalMem")) for d in entries],
            "sms": [whole(d.get("numSms")) for d in entries],
            "threads_per_sm": [
                whole(d.get("maxThreadsPerMultiprocessor", d.get("maxThreadsPerMultiProcessor")))
                for d in entries
            ],
        }
    )


def process_groups(meta: dict[str, Any]) -> pl.DataFrame:
    """Return the `process_groups` rows, from `distributedInfo.pg_config`."""
    config = distributed(meta).get("pg_config")
    entries = _entries(list(config.values()) if isinstance(config, dict) else config)
    return TABLES["process_groups"].frame(
        {
            "name": [str(g.get("pg_name", "")) for g in entries],
            "description": [str(g.get("pg_desc", "")) for g in entries],
            "backend": [str(g.get("backend_config", g.get("backend", ""))) for g in entries],
            "size": [whole(g.get("pg_size", g.get("group_count"))) for g in entries],
            "ranks": [recorded_numbers(g.get("ranks")) or None for g in entries],
        }
    )


def attributes(meta: dict[str, Any]) -> dict[str, str]:
    """Return the versions and names that the file records."""
    job = distributed(meta)
    values = {key: job.get(key) for key in ("backend", "nccl_version")}
    versions = ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "host_name")
    values |= {key: meta.get(key) for key in versions}
    return {key: str(value) for key, value in values.items() if value is not None}
