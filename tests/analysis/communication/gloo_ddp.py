"""Data-parallel ranks on the CPU, of which one is slowed down; they are forked, so that torch is loaded once.

gloo_ddp.py FOLDER: writes a run for each of `DELAYED`, in which a rank spends DELAY_S more of each step so,
from when the others stand where it begins to.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

if __name__ == "__main__":  # tests look up what it does, and need no torch for that
    import torch
    import torch._inductor.config  # the profiler imports it when it starts, which takes seconds
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule

DELAY_S = 0.2
RANKS, STEPS = 3, 3
DELAYED = {"sleep": 0, "compute": 1}
"""What a rank spends more time on → that rank."""


def main() -> None:
    """Start the ranks of each run, and end with the number of those that failed."""
    torch.set_num_threads(1)
    failed = 0
    for kind, slow in DELAYED.items():
        folder = Path(sys.argv[1], kind)
        folder.mkdir()
        pids = [os.fork() or _ended(folder, rank, kind if rank == slow else "") for rank in range(RANKS)]
        failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    sys.exit(failed)


def _ended(folder: Path, rank: int, kind: str) -> int:
    try:
        _train(folder, rank, kind)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _train(folder: Path, rank: int, kind: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS),
        on_trace_ready=lambda done: done.export_chrome_trace(f"{folder}/rank{rank}_trace.json"),
        record_shapes=True,
    ) as recorder:
        for step in range(STEPS + 1):
            _delay(kind, step, rank)
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    dist.destroy_process_group()


def _delay(kind: str, step: int, rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if not kind:
        store.set(f"{step} {rank}", "")
        return
    others = [f"{step} {other}" for other in range(RANKS) if other != rank]
    if kind == "sleep":
        store.wait(others)
        time.sleep(DELAY_S)
        return
    operand, end = torch.ones(512, 512), time.perf_counter() + DELAY_S
    while time.perf_counter() < end or not store.check(others):
        operand.sin_()


if __name__ == "__main__":
    main()
