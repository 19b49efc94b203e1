"""Timelines: all ranks of a run on one clock, as a file for Perfetto and chrome://tracing.

`load` reads the ranks onto a common clock, `activity` and `diagnoses` turn tables into `slices`, and `write`
writes them as trace events. `queries.sql` holds questions to such a file for Perfetto.
"""

from ccl_bench.timeline.write import MOST_SLICES, PERFETTO, WrittenTimeline, queries, write_timeline

__all__ = ["MOST_SLICES", "PERFETTO", "WrittenTimeline", "queries", "write_timeline"]
