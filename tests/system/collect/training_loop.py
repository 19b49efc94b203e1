"""A training loop of two or more ranks whose communication can be counted by hand, with a clock of its own.

training_loop.py OWN_CLOCK [apart|together] [FAILING_STEP]: OWN_CLOCK gets the begin and end of each step, s.

Each step calls 3 all-reduces and 1 all-gather on all ranks.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from datetime import timedelta
from pathlib import Path

gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from ccl_bench.collect import Schedule, profile  # noqa: E402

SCHEDULE = Schedule(skip=2, timed=4, warmup=1, active=3, observed=1)
ALL_REDUCES, ALL_GATHERS = 3, 1
TOKENS = 4096
STEP_S = 0.02
"""Least length of a step, so that the machine's own noise is small beside it."""


class Router(torch.nn.Module):
    """Sends token i to expert i mod 3, and to expert 3 none."""

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights and chosen experts."""
        return tokens.mean(1), torch.arange(len(tokens)) % 3


def main() -> None:
    """Train."""
    own_clock, how, *rest = [*sys.argv[1:], *["apart"][len(sys.argv) - 2 :]]
    failing = int(rest[0]) if rest else -1
    # A rank that waited for the others inside a collective would fail: none lasts longer than this.
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    weight = torch.ones(64, 64)
    parts = [torch.empty(64) for _ in range(size)]
    own, router = [], Router()
    with profile(
        schedule=SCHEDULE,
        execution_trace=how,
        compress=how == "together",
        memory=how == "together",
        metadata={"seq_len": 128, "global_batch_size": 32},
    ) as recording:
        recording.watch_router(router, layer=0, experts=4)
        for step in range(SCHEDULE.length + 2):
            began = time.perf_counter()
            router(torch.ones(12, 8))
            for _ in range(ALL_REDUCES):
                dist.all_reduce(weight @ weight)
            dist.all_gather(parts, weight[0])
            if step == failing and rank == 1:
                raise RuntimeError("the data ran out")
            time.sleep(STEP_S)
            own.append((began, time.perf_counter()))
            recording.step(tokens=TOKENS, loss=torch.tensor(float(step + rank)))
    Path(f"{own_clock}.{rank}").write_text(json.dumps(own))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
