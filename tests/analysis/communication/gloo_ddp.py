"""Data-parallel ranks on the CPU, of which one is slowed down; they are forked, so that torch is loaded once.

gloo_ddp.py FOLDER RANKS SLOW KIND: rank SLOW spends DELAY_S more of each step on KIND, `sleep` or `compute`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback

import torch
import torch._inductor.config  # the profiler imports it when it starts, which takes seconds
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

DELAY_S = 0.2
STEPS = 3


def main() -> None:
    """Start the ranks, and end with the number of those that failed."""
    folder, ranks, slow, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    pids = [os.fork() or _ended(folder, rank, ranks, kind if rank == slow else "") for rank in range(ranks)]
    sys.exit(sum(os.waitpid(pid, 0)[1] != 0 for pid in pids))


def _ended(folder: str, rank: int, ranks: int, kind: str) -> int:
    try:
        _train(folder, rank, ranks, kind)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _train(folder: str, rank: int, ranks: int, kind: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS),
        on_trace_ready=lambda done: done.export_chrome_trace(f"{folder}/rank{rank}_trace.json"),
        record_shapes=True,
    ) as recorder:
        for _ in range(STEPS + 1):
            _delay(kind)
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    dist.destroy_process_group()


def _delay(kind: str) -> None:
    if kind == "sleep":
        time.sleep(DELAY_S)
    elif kind == "compute":
        operand, end = torch.ones(512, 512), time.perf_counter() + DELAY_S
        while time.perf_counter() < end:
            operand.sin_()


if __name__ == "__main__":
    main()
