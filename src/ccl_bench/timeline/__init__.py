"""One run as a timeline: all ranks on one clock, as a file for Perfetto and chrome://tracing.

`load` reads the ranks onto one of the `clocks`, `activity` turns tables into `slices`, `trace_events` turns
slices into lines, and `write` writes the file.
"""

from ccl_bench.timeline.write import MOST_SLICES, Written, write_timeline

__all__ = ["MOST_SLICES", "Written", "write_timeline"]
