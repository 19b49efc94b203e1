"""Leaving a run directory behind that can be measured.

`profile` records a training loop from inside; `ccl_bench.collect.collect_run` runs a command and gathers
what it left. Importing this package costs nothing: neither torch nor the readers of traces are touched.
"""

from ccl_bench.collect.profiling import Phase, Recording, Schedule, profile

__all__ = ["Phase", "Recording", "Schedule", "profile"]
