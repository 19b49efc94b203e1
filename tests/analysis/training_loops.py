"""Record small training loops on the CPU, each with a known number of steps, one trace a loop.

training_loops.py FOLDER: writes FOLDER/LOOP.json for each.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS = 4


def _model(width: int = 8, depth: int = 2) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


def _loss(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(4, 8)).sum()


def _update(loss: torch.Tensor, *optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def one_optimizer(steps: int) -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        _update(_loss(model), optimizer)


def optimizer_for_each_part(steps: int) -> None:
    """Matrices and biases have optimizers of their own, as with Muon and AdamW; two more have theirs."""
    model = _model()
    by_shape = [[p for p in model.parameters() if p.ndim == dim] for dim in (2, 1)]
    optimizers = [torch.optim.SGD(by_shape[0]), torch.optim.AdamW(by_shape[1])]
    optimizers += [torch.optim.AdamW(part.parameters()) for part in (_model(), _model())]
    for _ in range(steps):
        _update(_loss(model), *optimizers)


def adversarial(steps: int, other: type[torch.optim.Optimizer] = torch.optim.RMSprop) -> None:
    """A discriminator and a generator are updated in turn, each after a backward pass of its own."""
    generator, discriminator = _model(depth=3), _model()
    ours, theirs = torch.optim.Adam(generator.parameters()), other(discriminator.parameters())
    for _ in range(steps):
        fake = generator(torch.ones(4, 8))
        _update(_loss(discriminator) - discriminator(fake.detach()).sum(), theirs)
        _update(discriminator(fake).sum(), ours)


def adversarial_of_one_class(steps: int) -> None:
    adversarial(steps, torch.optim.Adam)


def accumulating(steps: int) -> None:
    """Three backward passes add up before each update."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        for _ in range(2):
            _loss(model).backward()
        _update(_loss(model), optimizer)


def nested(steps: int) -> None:
    """Each iteration holds steps whose numbers begin again."""
    for iteration in range(steps):
        with record_function(f"iteration {iteration}"):
            for step in range(3):
                with record_function(f"step {step}"):
                    _loss(_model()).backward()


def epochs(steps: int) -> None:
    for _, step in itertools.product(range(2), range(steps)):
        with record_function(f"train_step {step}"):
            _loss(_model()).backward()


def unmarked(steps: int) -> None:
    for _ in range(steps):
        _loss(_model()).backward()


def marked(steps: int, profiler: profile) -> None:
    for _ in range(steps):
        _loss(_model()).backward()
        profiler.step()


def main(folder: Path, steps: int) -> None:
    """Record every loop into `folder`."""
    torch.set_num_threads(1)
    loops = (one_optimizer, optimizer_for_each_part, adversarial, adversarial_of_one_class, accumulating)
    for loop in (*loops, nested, epochs, unmarked):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            loop(steps)
        profiler.export_chrome_trace(str(folder / f"{loop.__name__}.json"))
    kept = {"on_trace_ready": lambda found: found.export_chrome_trace(str(folder / "marked.json"))}
    plan = schedule(wait=0, warmup=0, active=steps, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, **kept) as profiler:
        marked(steps, profiler)


if __name__ == "__main__":
    main(Path(sys.argv[1]), STEPS)
