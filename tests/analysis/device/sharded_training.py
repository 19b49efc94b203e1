"""Two processes that train a small model with each way of torch to shard it, and record themselves.

sharded_training.py FOLDER: writes a run for each way. The ranks are forked, so that torch is loaded once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":  # tests look up what it does, and need no torch for that
    import torch
    import torch._inductor.config  # the profiler imports it when it starts, which takes seconds
    from torch import distributed, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FullyShardedDataParallel,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )
    from torch.multiprocessing import start_processes
    from torch.profiler import ProfilerActivity, profile, schedule

KINDS = ("fully_shard", "offloaded", "wrapped")
RANKS, STEPS = 2, 2


def sharded(model: nn.Sequential, kind: str) -> nn.Module:
    """Return the model sharded over all ranks."""
    if kind == "wrapped":
        device = torch.device("cpu")
        layers = [FullyShardedDataParallel(layer, device_id=device) for layer in model]
        return FullyShardedDataParallel(nn.Sequential(*layers), device_id=device)
    mesh, precision = init_device_mesh("cpu", (RANKS,)), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    offload = CPUOffloadPolicy(pin_memory=False) if kind == "offloaded" else OffloadPolicy()
    for part in (*model, model):
        fully_shard(part, mesh=mesh, mp_policy=precision, offload_policy=offload)
    return model


def train(rank: int, folder: Path) -> None:
    """Train with each way of sharding, and write one trace for each."""
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    for kind in KINDS:
        model = sharded(nn.Sequential(*(nn.Linear(32, 32) for _ in range(2))), kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=steps, record_shapes=True) as recorded:
            for _ in range(1 + STEPS):
                model(torch.randn(4, 32)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                recorded.step()
        (folder / kind).mkdir(exist_ok=True)
        recorded.export_chrome_trace(str(folder / kind / f"rank{rank}.json"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    start_processes(train, (Path(sys.argv[1]),), nprocs=RANKS, start_method="fork")
