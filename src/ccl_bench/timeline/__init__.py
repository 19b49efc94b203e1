"""One run as a timeline: all ranks on one clock, as a file for Perfetto and chrome://tracing."""

from ccl_bench.timeline.write import MOST_SLICES, Written, write_timeline

__all__ = ["MOST_SLICES", "Written", "write_timeline"]
