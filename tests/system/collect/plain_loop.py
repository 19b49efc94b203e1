"""A plain training loop that knows nothing of ccl-bench, and counts for itself what it does.

plain_loop.py OWN STEPS: OWN receives the times before and after the optimizers of each step, and how often
the rank called a collective.

Two microbatches make a step; two optimizers are stepped in each, one after the other.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

MICROBATCHES = 2
STEP_S = 0.02
"""Least length of a step."""


def main() -> None:
    """Train."""
    own, steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1))
    halves = [list(layer.parameters()) for layer in model]
    optimizers = [torch.optim.SGD(halves[0], lr=0.01), torch.optim.AdamW(halves[1])]
    before, after, calls = [], [], 0
    for _ in range(steps):
        for _ in range(MICROBATCHES):
            model(torch.ones(8, 32)).mean().backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            calls += 1
        time.sleep(STEP_S)
        before.append(time.perf_counter())
        for optimizer in optimizers:
            optimizer.step()
        after.append(time.perf_counter())
        for optimizer in optimizers:
            optimizer.zero_grad()
    Path(f"{own}.{dist.get_rank()}").write_text(
        json.dumps({"before": before, "after": after, "calls": calls})
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
