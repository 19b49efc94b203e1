"""Train on 4 pipeline stages with the 1F1B schedule and 8 microbatches, and record the run.

torchrun --standalone --nproc_per_node 4 train_pipeline.py [OUT]
"""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from llama import Config, Llama, batch
from run import Plan, record
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.profiler import record_function

CONFIG = Config(layers=4)
PLAN = Plan(
    "four pipeline stages of one layer each, 1F1B with 8 microbatches",
    "pytorch pipelining",
    global_batch=16,
    pp=4,
    microbatches=8,
    schedule="1F1B",
    profiled=2,
)


def main() -> None:
    """Build this rank's stage and the step, and hand the step over to be recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", help="run directory; what ccl-bench collect names by default")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), PLAN.pp - 1

    torch.manual_seed(rank)
    module = Llama(CONFIG, range(rank, rank + 1), first=rank == 0, last=rank == last)
    stage = PipelineStage(module, rank, PLAN.pp, torch.device("cpu"))
    pipeline = Schedule1F1B(stage, PLAN.microbatches, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def step(i: int) -> float:
        losses: list[torch.Tensor] = []
        if rank == 0:
            pipeline.step(batch(CONFIG, PLAN.global_batch, seed=i)[0])
        elif rank == last:
            pipeline.step(target=batch(CONFIG, PLAN.global_batch, seed=i)[1], losses=losses)
        else:
            pipeline.step()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else math.nan

    record(step, CONFIG, PLAN, options.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
