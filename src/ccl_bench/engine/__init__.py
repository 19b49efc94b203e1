"""Where the work on each trace runs: in this process, or in a pool of processes."""

from ccl_bench.engine.comparable import LeftOut, left_out
from ccl_bench.engine.local import Progress, run
from ccl_bench.engine.reduction import Reduced, Task, local_needs, takes_part

__all__ = ["LeftOut", "Progress", "Reduced", "Task", "left_out", "local_needs", "run", "takes_part"]
