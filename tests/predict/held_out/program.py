"""Trains nothing, in the shape of a training: pipelines over gloo whose stages compute by sleeping.

program.py FOLDER STAGES REPLICAS MICROBATCHES SCHEDULE STEPS [LAYERS]: records every rank. SCHEDULE is 1f1b
or gpipe. A stage sleeps equally long whatever the number of stages; of LAYERS it sleeps for its share.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "forking"))

FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.006, 0.012, 0.003
LAYER_S = 0.0015
"""Forward time of a layer; backward takes twice as long."""


def main() -> None:
    """Record the ranks in processes of their own."""
    import torch.multiprocessing as processes

    folder, schedule = sys.argv[1], sys.argv[5]
    stages, replicas, microbatches, steps = (int(sys.argv[at]) for at in (2, 3, 4, 6))
    layers = int(sys.argv[7]) if len(sys.argv) > 7 else None
    processes.spawn(
        run_rank, (stages, replicas, microbatches, schedule, steps, folder, layers), nprocs=stages * replicas
    )


def run_rank(
    rank: int,
    stages: int,
    replicas: int,
    microbatches: int,
    schedule: str,
    steps: int,
    folder: str,
    layers: int | None,
) -> None:
    """Run one rank and write its trace."""
    import lasting_groups  # noqa: F401
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function
    from torch.profiler import schedule as steps_of

    torch.set_num_threads(1)
    forward_s, backward_s = FORWARD_S, BACKWARD_S
    if layers is not None:
        forward_s = LAYER_S * layers / stages
        backward_s = 2 * forward_s
    size = stages * replicas
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    stage = rank % stages
    groups = [dist.new_group([at + stages * k for k in range(replicas)]) for at in range(stages)]
    message, gradient = torch.zeros(64), torch.zeros(1024)
    neighbours = {-1: rank - 1 if stage else None, 1: rank + 1 if stage < stages - 1 else None}

    def receive(way: int, name: str) -> None:
        if neighbours[way] is not None:
            with record_function(name):
                dist.recv(message, src=neighbours[way])

    def compute(name: str, seconds: float) -> None:
        with record_function(name):
            time.sleep(seconds)

    def step() -> None:
        sent: list = []

        def send(way: int) -> None:
            if neighbours[way] is not None:
                sent.append(dist.isend(message, dst=neighbours[way]))

        def forward(number: int) -> None:
            receive(-1, f"recv_forward {number}")
            compute(f"forward {number}", forward_s)
            send(1)

        def backward(number: int) -> None:
            receive(1, f"recv_backward {number}")
            compute(f"backward {number}", backward_s)
            send(-1)

        warm_up = microbatches if schedule == "gpipe" else min(microbatches, stages - stage - 1)
        for number in range(warm_up):
            forward(number)
        for number in range(warm_up, microbatches):
            forward(number)
            backward(number - warm_up)
        for number in range(microbatches - warm_up, microbatches):
            backward(number)
        for each in sent:
            each.wait()
        if replicas > 1:
            dist.all_reduce(gradient, group=groups[stage])
        compute("optimizer", OPTIMIZER_S)
        dist.barrier()

    done = {}

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(f"{folder}/rank{rank}_trace.json")
        done["written"] = True

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=steps_of(wait=0, warmup=2, active=steps, repeat=1),
        on_trace_ready=write,
    ) as profiler:
        for _ in range(2 + steps):
            step()
            profiler.step()
    assert done
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # groups of gloo may hang where they are destroyed


if __name__ == "__main__":
    main()
