"""Train a small model with and without activation checkpointing, and record each way: one folder a way.

checkpointed_training.py FOLDER: writes FOLDER/WAY/rank0.json for each.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # tests look up what it does, and need no torch for that
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule
    from torch.utils.checkpoint import checkpoint

    class Product(torch.autograd.Function):
        """A product whose backward pass multiplies, like that of any layer written by hand."""

        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            return gradient @ weight.t(), x.t() @ gradient


CHECKPOINTED = ("reentrant", "not reentrant")
HEALTHY = ("nothing", "function", "gradient penalty", "create_graph")
LAYERS, STEPS = 3, 6
LINEAR = 2
"""Calls of `aten::linear` in a layer."""

WIDTH, BATCH = 192, 128


def layer() -> nn.Module:
    """Return a layer of a transformer without attention."""
    wide = 4 * WIDTH
    return nn.Sequential(nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH), nn.LayerNorm(WIDTH))


def loss_of(layers: nn.ModuleList, weight: nn.Parameter, way: str) -> torch.Tensor:
    """Return the loss of one batch."""
    batch = torch.randn(BATCH, WIDTH, requires_grad=True)
    hidden = batch
    for each in layers:
        if way in CHECKPOINTED:
            hidden = checkpoint(each, hidden, use_reentrant=way == "reentrant")
        else:
            hidden = each(hidden)
    if way == "function":
        hidden = Product.apply(hidden, weight)
    loss = hidden.pow(2).mean()
    if way == "gradient penalty":
        (gradient,) = torch.autograd.grad(loss, batch, create_graph=True)
        loss = loss + gradient.pow(2).sum()
    return loss


def train(way: str, file: Path) -> None:
    """Train for some steps and write their trace."""
    layers = nn.ModuleList(layer() for _ in range(LAYERS))
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
    optimizer = torch.optim.SGD([*layers.parameters(), weight], lr=0.01)
    steps = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps) as recorded:
        for _ in range(2 + STEPS):
            loss_of(layers, weight, way).backward(create_graph=way == "create_graph")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            recorded.step()
    file.parent.mkdir()
    recorded.export_chrome_trace(str(file))


def main(folder: Path) -> None:
    """Record each way."""
    torch.set_num_threads(1)
    for way in (*CHECKPOINTED, *HEALTHY):
        train(way, folder / way / "rank0.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
