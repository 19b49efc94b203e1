"""Train on a few ranks and record each with torch's own handler, under the names that it gives by default.

Started by torchrun: `profiled_ranks.py FOLDER WINDOWS`. The last rank works longest: the others wait for it.

It begins to when they stand where it does.
"""

from __future__ import annotations

import sys
import time

STEPS = 3
"""Steps of one window."""


def main(folder: str, windows: int) -> None:
    """Record so many windows of every rank."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plan = schedule(wait=1, warmup=0, active=STEPS, repeat=windows)
    handler = tensorboard_trace_handler(folder)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=handler) as recorder:
        for step in range(windows * (STEPS + 1)):
            loss = model(torch.ones(32, 256)).sum()
            if rank == world_size - 1:
                store.wait([f"{step} {other}" for other in range(rank)])
                time.sleep(0.2)
            else:
                store.set(f"{step} {rank}", "")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
