"""Record a training loop from inside: which steps are timed, profiled and observed, and what they write.

This package runs in the processes that train. It needs only the standard library, and imports torch when
a recording starts.
"""

from ccl_bench.collect.profiling.recording import Recording, profile
from ccl_bench.collect.profiling.schedule import Phase, Schedule

__all__ = ["Phase", "Recording", "Schedule", "profile"]
