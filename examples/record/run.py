"""What both recordings share: the loop around a training step, and what is said of the run."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist
from llama import Config, Llama

from ccl_bench.collect import Schedule, profile

if TYPE_CHECKING:
    from collections.abc import Callable


class Plan(NamedTuple):
    """How a run is spread over its ranks and fed."""

    title: str
    framework: str
    global_batch: int
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    microbatches: int = 1
    schedule: str | None = None
    profiled: int = 3

    @property
    def steps(self) -> Schedule:
        """What happens to which step."""
        return Schedule(skip=3, timed=10, warmup=2, active=self.profiled, observed=1)


def record(step: Callable[[int], float], config: Config, plan: Plan, out: str | None) -> None:
    """Run `step(i) -> loss` as often as there is something to record; leave a run directory in `out`."""
    numbers = {
        "global_batch_size": plan.global_batch,
        "seq_len": config.seq_len,
        "model_flops_per_token": flops_per_token(config),
    }
    steps = plan.steps
    with profile(out, schedule=steps, metadata=numbers) as recording:
        for i in range(steps.length):
            loss = step(i)
            if dist.get_rank() == plan.pp - 1:  # the first of those that have a loss
                print(f"step {i + 1} of {steps.length} ({recording.phase}): loss {loss:.2f}", flush=True)
            # Only some ranks compute a loss: the pipeline stages before the last have none.
            recording.step(tokens=plan.global_batch * config.seq_len, loss=None if math.isnan(loss) else loss)
    card = recording.options.output / "workload_card.yaml"
    if dist.get_rank() == 0 and not card.exists():
        write_card(config, plan, card)


def flops_per_token(config: Config) -> int:
    """Return the operations that one token costs, forward and backward (PaLM, appendix B)."""
    attention = 12 * config.layers * config.head_dim * config.heads * config.seq_len
    return 6 * (parameters(config) - embedding(config)) + attention


def parameters(config: Config) -> int:
    """Return the number of parameters of the whole model."""
    return sum(p.numel() for p in Llama(config, range(config.layers)).parameters())


def embedding(config: Config) -> int:
    """Return the number of parameters that are looked up and not multiplied."""
    return config.vocab * config.dim


def write_card(config: Config, plan: Plan, path: Path) -> None:
    """Write the workload card: what a person would write of this run."""
    facts = {
        **vars(config),
        **plan._asdict(),
        "world_size": dist.get_world_size(),
        "parameters": parameters(config),
        "embedding": embedding(config),
        "hidden": config.dim,
        "steps": plan.steps.length,
        "micro_batch": plan.global_batch // plan.dp_shard // plan.microbatches,
        "schedule": plan.schedule or "null",
        "torch": version("torch"),
    }
    template = Path(__file__).with_name("workload_card.template.yaml").read_text()
    path.write_text(template.format_map(facts))
