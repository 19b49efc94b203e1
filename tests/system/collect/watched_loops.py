"""Loops that nobody prepared for ccl-bench, each in a child of one process that has loaded torch.

watched_loops.py FOLDER: each of `LOOPS` is a program whose run directory is FOLDER/its name, and whose exit
status and output lie beside it.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partial
from pathlib import Path
from unittest import mock

gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch._inductor.config  # noqa: E402  the profiler imports it when it starts
from forked_loops import run_loops  # noqa: E402

sys.path.append(str(Path(__file__).parents[2] / "forking"))

from ending import run_to_the_end  # noqa: E402

NOT_NEEDED = ("datasets", "matplotlib", "pandas", "PIL", "scipy", "sklearn", "tensorboard", "torchvision")
"""Packages that the Trainer imports where it finds them; a loop without data, charts and scores uses none."""

STEPS = 9
"""Steps of each loop; the recording is over after 2 + 1 profiled ones and one observed: --steps 4-5."""


def model_and_optimizer(kind=torch.optim.SGD):
    model = torch.nn.Linear(4, 1)
    return model, kind(model.parameters(), lr=0.01)


def backward(model, step):
    """Do the work of a step, in a range that bears the number that the program gives it."""
    with torch.profiler.record_function(f"own {step}"):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
    return loss


def closure():
    """An optimizer that calls the model itself, several times a step."""
    model, optimizer = model_and_optimizer(torch.optim.LBFGS)

    def evaluate():
        optimizer.zero_grad()
        return backward(model, step)

    for step in range(STEPS):  # noqa: B007 (the closure reads it)
        optimizer.step(evaluate)


def critic():
    """Three steps of one optimizer for each of another."""
    model, generator = model_and_optimizer()
    critic, criticise = model_and_optimizer()
    for step in range(STEPS):
        for _ in range(3):
            backward(critic, step)
            criticise.step()
        backward(model, step)
        generator.step()


def groups():
    """A step for each group of parameters after one backward pass, as DeepSpeed does it."""
    model, optimizer = model_and_optimizer()
    for step in range(STEPS):
        backward(model, step)
        optimizer.step()
        optimizer.step()


def scaler():
    """A gradient scaler that skips the optimizer in every second step."""
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.profiler.record_function(f"own {step}"):
            loss = model(torch.ones(2, 4)).mean() * (float("inf") if step % 2 else 1.0)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def newcomer():
    """An optimizer that is stepped for the first time while the loop is recorded."""
    model, optimizer = model_and_optimizer()
    _, late = model_and_optimizer()
    for step in range(STEPS):
        backward(model, step)
        optimizer.step()
        if step > 3:
            late.step()


def wrapped():
    """An optimizer of optimizers, as torchtitan and Megatron have."""

    class Container(torch.optim.Optimizer):
        def __init__(self, parts):
            self.parts = parts
            super().__init__([each for part in parts for each in part.param_groups], {})

        def step(self):
            for part in self.parts:
                part.step()

    pairs = [model_and_optimizer() for _ in range(2)]
    optimizer = Container([each for _, each in pairs])
    for step in range(STEPS):
        for model, _ in pairs:
            backward(model, step)
        optimizer.step()


def compiled():
    """An optimizer that torch.compile traces, which must find what it would without ccl-bench."""
    model, optimizer = model_and_optimizer(torch.optim.AdamW)
    update = torch.compile(lambda: optimizer.step(), backend="eager")
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step)
        update()


def own_profiler():
    """A program with a profiler of its own, which waits when the first step ends."""
    model, optimizer = model_and_optimizer()
    folder = Path(os.environ["CCL_BENCH_OUTPUT"])
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=3, warmup=1, active=2),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / "own_trace.json")),
    ) as profiler:
        for step in range(STEPS):
            backward(model, step)
            optimizer.step()
            profiler.step()


def late_profiler():
    """A program that starts its profiler while it is recorded."""
    model, optimizer = model_and_optimizer()
    folder = Path(os.environ["CCL_BENCH_OUTPUT"])
    for step in range(STEPS):
        if step == 5:
            with torch.profiler.profile() as profiler:
                backward(model, step)
            profiler.export_chrome_trace(str(folder / "own_trace.json"))
        backward(model, step)
        optimizer.step()


def library():
    """A program that records itself."""
    from ccl_bench.collect import Schedule, profile

    model, optimizer = model_and_optimizer()
    with profile(schedule=Schedule(skip=1, timed=1, warmup=1, active=2, observed=0)) as recording:
        for step in range(STEPS):
            backward(model, step)
            optimizer.step()
            recording.step()


def lightning():
    """Lightning's Trainer: it calls the model inside the optimizer's step, and gathers gradients twice."""
    # It looks at results for those that torchmetrics made; loading that takes longer than Lightning.
    metric = type("Metric", (torch.nn.Module,), {})
    sys.modules["torchmetrics"] = mock.MagicMock(Metric=metric, MetricCollection=metric, __version__="1.0.0")
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            with torch.profiler.record_function(f"own {self.global_step}"):
                return self.layer(batch).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters())
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(
        max_steps=STEPS, accumulate_grad_batches=2, accelerator="cpu", enable_model_summary=False, **quiet
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=2))


def hugging_face():
    """The Trainer of transformers, with two microbatches a step."""
    sys.modules |= dict.fromkeys(NOT_NEEDED)  # what is not there need not be imported
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x):
            with torch.profiler.record_function(f"own {trainer.state.global_step}"):
                return {"loss": self.layer(x).square().mean()}

    arguments = TrainingArguments(
        os.environ["CCL_BENCH_OUTPUT"] + "/hf",
        max_steps=STEPS,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(Model(), arguments, train_dataset=[{"x": torch.ones(4)}] * 64)
    trainer.train()


def fails():
    """An exception in the second recorded step."""
    model, optimizer = model_and_optimizer()
    for step in range(STEPS):
        backward(model, step)
        if step == 5:
            raise RuntimeError("the data ran out")
        optimizer.step()


def short():
    """A loop that ends before the profiler starts."""
    model, optimizer = model_and_optimizer()
    for step in range(3):
        backward(model, step)
        optimizer.step()


def leaves():
    """A program that ends without a word to Python, in the second recorded step."""
    model, optimizer = model_and_optimizer()
    for step in range(STEPS):
        backward(model, step)
        if step == 5:
            os._exit(7)
        optimizer.step()


def forks():
    """A child that trains while its parent is recorded."""
    model, optimizer = model_and_optimizer()
    for step in range(STEPS):
        backward(model, step)
        optimizer.step()
        if step == 4 and not os.fork():
            for step in range(STEPS):
                backward(model, step)
                optimizer.step()
            os._exit(0)
    os.wait()


def inference():
    """No optimizer at all."""
    model, _ = model_and_optimizer()
    with torch.inference_mode():
        for _ in range(STEPS):
            model(torch.ones(2, 4))


LOOPS = {
    each.__name__: each
    for each in (
        closure,
        critic,
        groups,
        scaler,
        wrapped,
        compiled,
        own_profiler,
        late_profiler,
        newcomer,
        library,
        lightning,
        hugging_face,
        fails,
        short,
        leaves,
        forks,
        inference,
    )
}


if __name__ == "__main__":
    run_loops({name: partial(run_to_the_end, loop) for name, loop in LOOPS.items()})
