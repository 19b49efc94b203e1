"""Collection of runs: from a command or a training loop to a run directory.

`profiling.recording.profile` records a training loop from inside; `collect_run` runs a command and gathers
its files. `launch` starts commands, `injection` records unchanged programs, `environment` and `describe`
document the run, and `workloads` generates jobs. Importing this package loads neither torch nor the readers
of traces.
"""

from ccl_bench.collect.profiling import Recording, Schedule, StepPhase, profile

__all__ = ["Recording", "Schedule", "StepPhase", "profile"]
