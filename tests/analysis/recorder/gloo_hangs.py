"""Jobs of four gloo ranks that stop in known ways, each with the dumps of torch's Flight Recorder.

gloo_hangs.py FOLDER: writes FOLDER/SCENARIO/comm_lib_trace_rank_N. A call that would wait for ever is left
pending, and every rank dumps before any ends. The ranks are forked, so that torch is loaded once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # tests look up what it does, and need no torch for that
    import torch
    import torch._dynamo  # the first group asks for it, which takes seconds in each rank
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Barrier

FORK = multiprocessing.get_context("fork")

RANKS, ELEMENTS, TOGETHER = 4, 8, 3
"""Ranks, elements of a tensor, and all-reduces that all make first."""
SMALL_BUFFER = 4
"""Calls that the ring buffer of the scenario `overwritten` holds."""
PAIRS = ((0, 1), (2, 3))
DELAYED, DELAY_S, ROUNDS = 2, 0.02, 10
"""Of the scenario `late`: the rank that comes late, by how much at least each time, and how often."""
LONGEST_S = 100
"""After which a rank is ended that waits for one which failed."""


def missing(rank: int) -> None:
    """Rank 2 does not make the fourth call."""
    if rank != 2:
        _reduce()


def order(rank: int) -> None:
    """Rank 1 begins with the second of two groups of all ranks."""
    first, second = (dist.new_group(group_desc=name) for name in ("first", "second"))
    _reduce(second if rank == 1 else first)


def collective(rank: int) -> None:
    """Rank 3 broadcasts where the others reduce."""
    if rank == 3:
        dist.broadcast(torch.zeros(ELEMENTS), 3, async_op=True)
    else:
        _reduce()


def size(rank: int) -> None:
    """Rank 3 gathers one element more than the others."""
    given = torch.zeros(ELEMENTS + (rank == 3))
    dist.all_gather([torch.zeros_like(given) for _ in range(RANKS)], given, async_op=True)


def no_dump(rank: int) -> None:
    """Rank 1 stops, and leaves no dump."""
    if rank != 1:
        _reduce()


def overwritten(rank: int) -> None:
    """Rank 2 stops after more calls than the ring buffer holds."""
    for _ in range(2 * SMALL_BUFFER):
        dist.all_reduce(torch.zeros(ELEMENTS))
    missing(rank)


def one_name(rank: int) -> None:
    """Two groups of one description; rank 3 does not come to its own, and the other is two calls ahead."""
    own = [dist.new_group(list(pair), group_desc="pair") for pair in PAIRS][rank // 2]
    for _ in range(3 if rank < 2 else 1):
        dist.all_reduce(torch.zeros(ELEMENTS), group=own)
    if rank == 2:
        _reduce(own)


def message(rank: int) -> None:
    """Rank 1 waits for a message that rank 0 does not send; gloo records no message."""
    if rank == 1:
        dist.irecv(torch.zeros(ELEMENTS), 0)
    else:
        _reduce()


def subgroup(rank: int) -> None:
    """Rank 3 stops; rank 1 waits for it in their group, and ranks 0 and 2 wait for both."""
    odd = dist.new_group([1, 3], group_desc="odd")
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        _reduce(odd)
        store.set("called", "")
    elif rank != 3:
        store.wait(["called"])
        _reduce()


def complete(_: int) -> None:
    """Every rank makes every call."""
    dist.barrier()


def late(rank: int) -> None:
    """Rank 2 comes late to every call: it sleeps once all others have called."""
    store = dist.distributed_c10d._get_default_store()
    for number in range(ROUNDS):
        if rank == DELAYED:
            store.wait([f"called {number} {other}" for other in range(RANKS) if other != rank])
            time.sleep(DELAY_S)
        call = dist.all_reduce(torch.zeros(ELEMENTS), async_op=True)
        store.set(f"called {number} {rank}", "")
        call.wait()


APART = {"collective", "size"}
"""Scenarios whose last rank calls when the others have dumped and ended: gloo ends a process that is sent
more or less than it expects."""

SCENARIOS = (
    missing, order, collective, size, no_dump, overwritten, one_name, message, subgroup, complete, late,
)  # fmt: skip


def _reduce(group: object = None) -> None:
    dist.all_reduce(torch.zeros(ELEMENTS), group=group, async_op=True)


def main() -> None:
    """Let every scenario happen, and end with the number of ranks that failed."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    failed = 0
    for scenario in SCENARIOS:
        run = folder / scenario.__name__
        run.mkdir()
        together = RANKS - (scenario.__name__ in APART)
        meeting, processes = FORK.Barrier(together), FORK.Array("i", RANKS)
        for rank in range(RANKS):
            processes[rank] = os.fork() or _ended(scenario, rank, run, meeting, processes)
        failed += sum(os.waitpid(process, 0)[1] != 0 for process in processes)
    _ask_torch(folder / "missing", folder / "torch.txt")
    sys.exit(failed)


def _ended(
    scenario: Callable[[int], None], rank: int, run: Path, meeting: Barrier, processes: Sequence[int]
) -> int:
    signal.alarm(LONGEST_S)
    try:
        _record(scenario, rank, run, meeting, processes)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _record(
    scenario: Callable[[int], None], rank: int, run: Path, meeting: Barrier, processes: Sequence[int]
) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(SMALL_BUFFER if scenario is overwritten else 2000)
    store = dist.FileStore(str(run / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for _ in range(TOGETHER):
        dist.all_reduce(torch.zeros(ELEMENTS))
    is_apart = rank == meeting.parties
    if is_apart:
        _wait_for_ends(processes[:rank])
    scenario(rank)
    if not is_apart:  # who ends sooner breaks the connections that others wait on
        meeting.wait()
    if scenario is not no_dump or rank != 1:
        (run / f"comm_lib_trace_rank_{rank}").write_bytes(_dump_fr_trace())
    if not is_apart:
        meeting.wait()


def _wait_for_ends(processes: Sequence[int]) -> None:
    """Wait until processes are gone; their parent waits for them in order."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(process, 0)
                time.sleep(0.005)


def _ask_torch(dumps: Path, answer: Path) -> None:
    """Keep what torch's own analyser says, which is an exception."""
    from torch.distributed.flight_recorder import fr_trace

    said = "an answer"
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        try:
            fr_trace.main([str(dumps), "--prefix", "comm_lib_trace_rank_"])
        except BaseException as error:
            said = type(error).__name__
    answer.write_text(said)


if __name__ == "__main__":
    main()
