"""Trains nothing, in the shape of a training: ranks compute by sleeping, and some are slow in some steps.

program.py FOLDER pipeline|replicas: records every rank. Each step lies in a range `scenario NAME`; scenarios
take turns, two steps each.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "forking"))

STEPS = 20
"""Steps of each scenario."""

PIPELINE = ("clean", "slow", "last")
REPLICAS = ("clean", "slow", "loader", "experts")
SCENARIOS = {"pipeline": PIPELINE, "replicas": REPLICAS}
RANKS = {"pipeline": 8, "replicas": 4}

STAGES, MICROBATCHES, FORWARD_S, BACKWARD_S = 4, 8, 0.006, 0.012
LAYERS, BUCKET, LAYER_S, LOADER_S, EXPERT_S = 6, 3, 0.012, 0.002, 0.012


def main() -> None:
    """Record the ranks of a program in processes of their own."""
    import torch.multiprocessing as processes

    folder, program = Path(sys.argv[1]), sys.argv[2]
    processes.spawn(run_rank, args=(RANKS[program], str(folder), program), nprocs=RANKS[program])


def run_rank(rank: int, size: int, folder: str, program: str) -> None:
    """Run one rank and write its trace."""
    import lasting_groups  # noqa: F401
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    step = {"pipeline": pipeline_step, "replicas": replica_step}[program](rank, size)
    scenarios = SCENARIOS[program]
    steps = STEPS * len(scenarios)
    done = {}

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(f"{folder}/rank{rank}_trace.json")
        done["written"] = True

    warm_up = 2
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=warm_up, active=steps),
        on_trace_ready=write,
    ) as profiler:
        for number in range(warm_up + steps):
            scenario = scenarios[(number - warm_up) // 2 % len(scenarios)]
            with record_function(f"scenario {scenario}"):
                step(scenario)
            profiler.step()
    assert done
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # groups of gloo may hang where they are destroyed


def compute(name: str, seconds: float) -> None:
    """Take some time in a range, as an operator does of which no event is recorded."""
    from torch.profiler import record_function

    with record_function(name):
        time.sleep(seconds)


def pipeline_step(rank: int, size: int):
    """Return a step of one-forward-one-backward, in two pipelines that reduce their gradients."""
    import torch
    import torch.distributed as dist
    from torch.profiler import record_function

    stage, replica = rank % STAGES, rank // STAGES
    groups = [dist.new_group([at, at + STAGES]) for at in range(size // 2)]
    message, gradient = torch.zeros(64), torch.zeros(1024)
    neighbours = {-1: rank - 1 if stage else None, 1: rank + 1 if stage < STAGES - 1 else None}

    def receive(way: int, name: str) -> None:
        if neighbours[way] is not None:
            with record_function(name):
                dist.recv(message, src=neighbours[way])

    def send(way: int, sent: list) -> None:
        if neighbours[way] is not None:
            sent.append(dist.isend(message, dst=neighbours[way]))

    def run(scenario: str) -> None:
        factor = 1.6 if scenario == "slow" and rank == 1 else 1.0
        factor = 1.5 if scenario == "last" and stage == STAGES - 1 else factor
        sent: list = []

        def forward(number: int) -> None:
            receive(-1, f"recv_forward {number}")
            compute(f"forward {number}", FORWARD_S * factor)
            send(1, sent)

        def backward(number: int) -> None:
            receive(1, f"recv_backward {number}")
            compute(f"backward {number}", BACKWARD_S * factor)
            send(-1, sent)

        warm_up = min(MICROBATCHES, STAGES - stage - 1)
        for number in range(warm_up):
            forward(number)
        for number in range(warm_up, MICROBATCHES):
            forward(number)
            backward(number - warm_up)
        for number in range(MICROBATCHES - warm_up, MICROBATCHES):
            backward(number)
        for each in sent:
            each.wait()
        dist.all_reduce(gradient, group=groups[stage])
        compute("optimizer", 0.003)
        dist.barrier()

    del replica
    return run


def replica_step(rank: int, size: int):
    """Return a step of replicas that reduce the gradients of each layer, and exchange tokens with experts."""
    import torch
    import torch.distributed as dist

    gradient, tokens, received = torch.zeros(16384), torch.zeros(4 * 256), torch.zeros(4 * 256)

    def run(scenario: str) -> None:
        late = scenario == "loader" and rank == 2
        compute("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", LOADER_S + 0.04 * late)
        factor = 1.6 if scenario == "slow" and rank == 1 else 1.0
        for number in range(LAYERS):
            compute(f"forward {number}", LAYER_S * factor)
        dist.all_to_all_single(received, tokens)
        compute("experts", EXPERT_S * (4 if scenario == "experts" and rank == 3 else 1))
        dist.all_to_all_single(tokens, received)
        for number in reversed(range(LAYERS)):
            compute(f"backward {number}", LAYER_S * factor)
            if number % BUCKET == 0:
                dist.all_reduce(gradient)
        compute("optimizer", 0.003)
        dist.barrier()

    return run


if __name__ == "__main__":
    main()
