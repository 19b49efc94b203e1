"""Recognition of Nsight Systems' reports and exports by their first bytes."""

from __future__ import annotations

from ccl_bench.storage import SQLITE_MAGIC
from ccl_bench.trace.formats import all_of, any_of, begins, holds

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"

_TABLES = (b"StringIds", b"TARGET_INFO_SESSION_START_TIME", b"CUPTI_ACTIVITY_KIND_", b"NVTX_EVENTS")
_EVENTS = (b'"CudaEvent"', b'"TraceProcessEvent"', b'"NvtxEvent"', b'"MmapEvent"', b'"CommEvent"')

is_export = all_of(begins(SQLITE_MAGIC), any_of(*map(holds, _TABLES)))
"""A database that `nsys export` wrote."""

is_report = begins(REPORT_MAGIC)
"""A report, `.nsys-rep` or `.qdrep`."""

is_json_export = any_of(
    begins(rb'\{"data":\["\[Unknown\]"'), all_of(begins(rb'\{"Type":'), any_of(*map(holds, _EVENTS)))
)
"""A report as `nsys export --type json` writes it."""
