"""A plain PyTorch loop that records itself; on GPUs with NCCL, else on CPUs with gloo.

ccl-bench collect --output runs/ddp -- torchrun --standalone --nproc-per-node 4 trace_gen/pytorch/train.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ccl_bench.collect import Schedule, profile

SCHEDULE = Schedule(skip=5, timed=5, warmup=5, active=5, observed=1)
BATCH, TOKENS, WIDTH = 8, 128, 256
"""Sequences on one rank, tokens in one, numbers in one."""


def main() -> None:
    """Train a small model as often as there is something to record."""
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if has_gpu else "cpu")
    dist.init_process_group("nccl" if has_gpu else "gloo")
    ranks = dist.get_world_size()

    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    sizes = {"global_batch_size": BATCH * ranks, "seq_len": TOKENS}
    with profile(schedule=SCHEDULE, metadata=sizes) as recording:
        for _ in range(SCHEDULE.length):
            x = torch.randn(BATCH, TOKENS, WIDTH, device=device)
            loss = F.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step(tokens=BATCH * TOKENS * ranks, loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
