"""Write a run directory that can be measured.

`profile` records a training loop from inside; `ccl_bench.collect.collect_run` runs a command and gathers
what it wrote. Importing this package is cheap: it loads neither torch nor the readers of traces.
"""

from ccl_bench.collect.profiling import Phase, Recording, Schedule, profile

__all__ = ["Phase", "Recording", "Schedule", "profile"]
