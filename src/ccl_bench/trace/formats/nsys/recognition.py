"""Whether a file is a report of Nsight Systems or its export, from its first bytes."""

from __future__ import annotations

SQLITE_MAGIC = b"SQLite format 3\x00"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"

_TABLES_OF_NSYS = (b"StringIds", b"TARGET_INFO_SESSION_START_TIME", b"CUPTI_ACTIVITY_KIND_", b"NVTX_EVENTS")


def is_export(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a database that `nsys export` wrote."""
    return head.startswith(SQLITE_MAGIC) and any(name in head for name in _TABLES_OF_NSYS)


def is_report(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a report, `.nsys-rep` or `.qdrep`."""
    return head.startswith(REPORT_MAGIC)


_EVENTS_OF_NSYS = (b'"CudaEvent"', b'"TraceProcessEvent"', b'"NvtxEvent"', b'"MmapEvent"', b'"CommEvent"')


def is_json_export(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a report as `nsys export --type json` writes it."""
    if head.startswith(b'{"data":["[Unknown]"'):
        return True
    return head.startswith(b'{"Type":') and any(name in head for name in _EVENTS_OF_NSYS)
