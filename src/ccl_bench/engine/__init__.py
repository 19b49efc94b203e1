"""Engines, which read each trace in this process, in other processes, or on workers of a cluster."""

from ccl_bench.engine.engines import Progress, read_concatenated, read_traces, stream_traces, use_engine
from ccl_bench.engine.read_trace import Task, contributes, has_rows, tables_of_each_trace

__all__ = [
    "Progress",
    "Task",
    "contributes",
    "has_rows",
    "read_concatenated",
    "read_traces",
    "stream_traces",
    "tables_of_each_trace",
    "use_engine",
]
