"""Where the work on each trace runs: in this process, in others beside it, or on the workers of a cluster."""

from ccl_bench.engine.choice import read_together, results, run, used
from ccl_bench.engine.local import Progress
from ccl_bench.engine.reduction import Task, has_rows, local_needs, takes_part
from ccl_bench.engine.together import KEYS

__all__ = [
    "KEYS",
    "Progress",
    "Task",
    "has_rows",
    "local_needs",
    "read_together",
    "results",
    "run",
    "takes_part",
    "used",
]
