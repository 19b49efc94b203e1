"""Timelines: all ranks of a run on one clock, as a file for Perfetto and chrome://tracing.

`load` reads the ranks onto a common clock, `activity` turns tables into `slices`, and `write` writes them as
trace events.
"""

from ccl_bench.timeline.write import MOST_SLICES, WrittenTimeline, write_timeline

__all__ = ["MOST_SLICES", "WrittenTimeline", "write_timeline"]
