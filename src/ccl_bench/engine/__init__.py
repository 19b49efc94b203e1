"""Where the work on each trace runs: in this process, in others beside it, or on the workers of a cluster."""

from ccl_bench.engine.choice import read_together, results, run, used
from ccl_bench.engine.comparable import LeftOut, left_out
from ccl_bench.engine.local import Progress
from ccl_bench.engine.reduction import UNREAD, Reduced, Task, has_rows, local_needs, takes_part
from ccl_bench.engine.together import KEYS
from ccl_bench.engine.windows import renumber, windows_of

__all__ = [
    "KEYS",
    "UNREAD",
    "LeftOut",
    "Progress",
    "Reduced",
    "Task",
    "has_rows",
    "left_out",
    "local_needs",
    "read_together",
    "renumber",
    "results",
    "run",
    "takes_part",
    "used",
    "windows_of",
]
