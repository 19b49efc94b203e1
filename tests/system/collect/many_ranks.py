"""Eight ranks, of which two may write at once.

many_ranks.py RUN: every rank prints from when to when it wrote its trace, and when it called the collective
after that, s. The ranks are forked, so that torch is loaded once.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from datetime import timedelta

gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.

import torch  # noqa: E402
import torch._inductor.config  # noqa: E402  the profiler imports it when it starts, which takes seconds
import torch.distributed as dist  # noqa: E402

from ccl_bench.collect import Schedule, profile  # noqa: E402
from ccl_bench.collect.profiling import frameworks  # noqa: E402

RANKS, WRITERS = 8, 2
WRITING_S = 0.25
"""Of one rank at least, so that the first could call a collective before the last has written."""


def main() -> None:
    """Start the ranks, and end with the number of those that failed."""
    run = sys.argv[1]
    pids = [os.fork() or _ended(rank, run) for rank in range(RANKS)]
    os._exit(sum(os.waitpid(pid, 0)[1] != 0 for pid in pids))


def _ended(rank: int, run: str) -> int:
    try:
        _train(rank, run)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _train(rank: int, run: str) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    place, limit = f"file://{run}.store", timedelta(minutes=5)
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=RANKS, timeout=limit)
    export = frameworks.export_trace

    def slow_export(*arguments, **wishes):
        began = time.monotonic()
        problem = export(*arguments, **wishes)
        time.sleep(WRITING_S)
        os.write(
            1, f"[{began}, {time.monotonic()}]\n".encode()
        )  # at once, so that no other rank's comes between
        return problem

    frameworks.export_trace = slow_export
    schedule = Schedule(skip=0, timed=1, warmup=1, active=1, observed=1)
    with profile(run, schedule=schedule, writers_per_node=WRITERS) as recorded:
        for number in range(schedule.length + 1):
            if number == schedule.length - 1:  # the step before was the active one
                os.write(1, f"next {time.monotonic()}\n".encode())
            dist.all_reduce(torch.ones(4))
            recorded.step(tokens=1)
    dist.destroy_process_group()


main()
