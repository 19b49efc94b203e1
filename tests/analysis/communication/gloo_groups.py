"""Four ranks, pp 2 x dp 2, on gloo: messages in one group, collectives in two at once, uneven exchanges.

gloo_groups.py RUN: writes RUN/rankN_trace.json. The ranks are forked, so that torch is loaded once.
"""

from __future__ import annotations

import os
import sys
import traceback

if __name__ == "__main__":  # tests look up what it does, and need no torch for that
    import torch
    import torch._inductor.config  # the profiler imports it when it starts, which takes seconds
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.profiler import ProfilerActivity, profile, record_function

RANKS, STEPS = 4, 2

DOWN, UP = 500, 300
"""Elements that the first stage sends to the second, and the other way."""
LARGE, SMALL = 100_000, 64
"""Elements of an all-reduce in the dp group, and of what each gives to an all-gather in the pp group."""
SCATTERED = 1_000
"""Elements of a reduce-scatter, which gloo carries out as an all-reduce."""
ROWS = ((40, 8, 8, 8), (8, 16, 8, 8), (8, 8, 24, 32), (0, 8, 8, 8))
"""Rows that each rank sends to each in an all-to-all."""
WIDTH = 4


def main() -> None:
    """Start the ranks, and end with the number of those that failed."""
    run = sys.argv[1]
    pids = [os.fork() or _ended(rank, run) for rank in range(RANKS)]
    sys.exit(sum(os.waitpid(pid, 0)[1] != 0 for pid in pids))


def _ended(rank: int, run: str) -> int:
    try:
        _train(rank, run)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _train(rank: int, run: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{run}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh.get_group("pp"), mesh.get_group("dp")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for number in range(STEPS):
            with record_function(f"ProfilerStep#{number}"):
                _exchange_messages(rank, pp)
                _communicate_at_once(pp, dp)
                _exchange_rows(rank)
                dist.barrier()
    profiler.export_chrome_trace(f"{run}/rank{rank}_trace.json")
    dist.barrier()


def _exchange_messages(rank: int, pp: dist.ProcessGroup) -> None:
    """Send down in one message, then down and up at once."""
    other, is_first = (rank + 2) % RANKS, rank < 2
    message = torch.ones(DOWN)
    if is_first:
        dist.send(message, other, group=pp)
    else:
        dist.recv(message, other, group=pp)
    sent, received = torch.ones(DOWN if is_first else UP), torch.empty(UP if is_first else DOWN)
    ends = [dist.P2POp(dist.isend, sent, other, pp), dist.P2POp(dist.irecv, received, other, pp)]
    for work in dist.batch_isend_irecv(ends):
        work.wait()


def _communicate_at_once(pp: dist.ProcessGroup, dp: dist.ProcessGroup) -> None:
    gathered = [torch.empty(SMALL) for _ in range(2)]
    begun = [
        dist.all_reduce(torch.ones(LARGE), group=dp, async_op=True),
        dist.all_gather(gathered, torch.ones(SMALL), group=pp, async_op=True),
        dist.reduce_scatter_tensor(
            torch.empty(SCATTERED // 2), torch.ones(SCATTERED), group=dp, async_op=True
        ),
        dist.all_reduce(torch.ones(SMALL), group=pp, async_op=True),
    ]
    for work in reversed(begun):
        work.wait()


def _exchange_rows(rank: int) -> None:
    sent, received = list(ROWS[rank]), [row[rank] for row in ROWS]
    dist.all_to_all_single(torch.empty(sum(received), WIDTH), torch.ones(sum(sent), WIDTH), received, sent)
    dist.all_to_all([torch.empty(8) for _ in range(RANKS)], [torch.ones(8) for _ in range(RANKS)])


if __name__ == "__main__":
    main()
