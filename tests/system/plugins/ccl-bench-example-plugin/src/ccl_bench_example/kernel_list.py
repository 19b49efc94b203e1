"""The trace format `kernel-list`: JSON such as {"kernel-list": 1, "rank": 0, "kernels": [["gemm", 0, 5]]}.

Each kernel is its name, its start and its end in nanoseconds; `ranges`, of the same shape, are named ranges
of the program, of which `round 1`, `round 2`, ... are the steps. Files may end in `.klist`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, BinaryIO

from ccl_bench import TABLES, Finding, Format, Identity, InputError, TraceContent, register

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.base.lazy_imports import pl

_RANK = re.compile(rb'"rank"\s*:\s*(\d+)')


def recognises(head: bytes) -> bool:
    """Whether a file begins as this format does."""
    return b'"kernel-list"' in head[:64]


def identity(head: bytes) -> Identity:
    """Return the rank that stands in the first bytes."""
    rank = _RANK.search(head)
    return Identity(rank=int(rank[1]) if rank else None)


def read(stream: BinaryIO, file: str) -> TraceContent:
    """Return the file as tables; kernels that end before they start are left out and counted."""
    try:
        document = json.load(stream)
    except (ValueError, EOFError) as error:  # of JSON, and of a compressed file that is cut off
        raise InputError(f"is not complete: {error}", where=file, fix="copy it again") from error
    whole = [kernel for kernel in document["kernels"] if kernel[1] <= kernel[2]]
    findings = []
    if lost := len(document["kernels"]) - len(whole):
        message = f"{lost} kernels end before they start and are left out"
        findings.append(
            Finding("kernel-list-backwards", "warning", message, file, count=lost, touches=("kernels",))
        )
    names, starts, ends = zip(*whole, strict=True) if whole else ((), (), ())
    kernels = TABLES["kernels"].frame({"name": names, "start_ns": starts, "end_ns": ends})
    tables = {"kernels": kernels, "annotations": _ranges(document.get("ranges", ()))}
    return TraceContent(tables, rank=document.get("rank"), findings=findings)


def _ranges(rows: Sequence[tuple[str, int, int]]) -> pl.DataFrame:
    names, starts, ends = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"name": names, "start_ns": starts, "end_ns": ends, "on_device": [False] * len(names)}
    return TABLES["annotations"].frame(columns)


KERNEL_LIST = register(
    Format(
        name="kernel-list",
        profile="torch",
        revision=1,
        tables=frozenset({"kernels", "annotations"}),
        recognises=recognises,
        identity=identity,
        read=read,
        suffixes=(".json", ".klist", ".klist.gz"),
        recorder="the kernel lister",
        step_marker=r"^round (\d+)$",
        advice="run the kernel lister with --everything",
    )
)
