"""A training that a search measures: a generated run of the configuration that the environment names.

A layer takes 3 ms for a sequence, divided by tp; its four tensor-parallel collectives take 1.5 ms each. Four
sequences or more in a microbatch do not fit into memory. A file `delay` in the folder of the search makes it
wait.
"""

import os
import sys
import time
from pathlib import Path

from ccl_bench.testing import Message, Plan, write_run

TP, DP, PP, SIZE, BATCH = (
    int(os.environ[name]) for name in ("TP", "DP", "PP", "MICRO_BATCH", "GLOBAL_BATCH")
)
LAYERS = 4


def main() -> None:
    """Write the run, or fail as torch does."""
    with Path("starts").open("a") as starts:
        starts.write("started\n")
    delay = Path("../delay")
    if delay.exists():
        time.sleep(float(delay.read_text()))
    if SIZE >= 4:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    layer_ns = 1_000_000 * SIZE // TP
    plan = Plan(
        dp_shard=DP,
        tp=TP,
        pp=PP,
        layers=LAYERS // PP,
        microbatches=BATCH // DP // SIZE,
        microbatch_size=SIZE,
        forward_ns=layer_ns,
        backward_ns=2 * layer_ns,
        tp_all_reduce=Message(1 << 16, 1_500_000),
    )
    write_run(plan, Path(os.environ["CCL_BENCH_OUTPUT"]))


if __name__ == "__main__":
    main()
