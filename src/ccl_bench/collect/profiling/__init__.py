"""Recording of a training loop from inside; `recording.profile` is its public function.

`schedule` decides which steps are timed, profiled and observed, `recorders` record them, `rank_summary`
writes the small files. The package runs in the training processes. It needs only the standard library, and
imports torch when a recording starts.
"""

from ccl_bench.collect.profiling.recording import Recording, profile
from ccl_bench.collect.profiling.schedule import Schedule, StepPhase

__all__ = ["Recording", "Schedule", "StepPhase", "profile"]
