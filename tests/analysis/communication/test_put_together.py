"""Calls that one kernel carries out together: their bytes are those of the operators put together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from cross_runs import codes, measured, tables

if TYPE_CHECKING:
    from pathlib import Path

SENDRECV, GATHER = (
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_AllGather_RING_LL",
)


def event(name: str, cat: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def part(ts: int, collective: str, sent: int, received: int, place: int) -> dict[str, Any]:
    """Return an operator that hands its call over without launching anything; `place` is its `Rank`."""
    group = {"Process Group Name": "0", "Process Group Description": "default_pg", "Group size": 2}
    ranks = {"Process Group Ranks": "[0, 1]", "dtype": "Float", "Rank": place}
    sizes = {"Collective name": collective, "In msg nelems": sent, "Out msg nelems": received}
    return event("record_param_comms", "cpu_op", ts, 1, **sizes, **group, **ranks)


def written(folder: Path, parts: list[tuple[str, int, int]], kernel: str, **known: Any) -> Path:
    """Write two ranks that put `parts` together, launch one kernel for them, and then gather alone."""
    for rank in (0, 1):
        handed = [part(10 + 2 * n, *what, place=1 - rank) for n, what in enumerate(parts)]
        launch = event("cudaLaunchKernel", "cuda_runtime", 30, 1, correlation=1)
        ran = event(kernel, "kernel", 40, 20, stream=7, correlation=1, device=0, **known)
        alone = part(70, "_allgather_base", 5, 10, rank) | {"dur": 6}
        own = event("cudaLaunchKernel", "cuda_runtime", 72, 1, correlation=2)
        gathered = event(GATHER, "kernel", 80, 10, stream=7, correlation=2, device=0)
        step = event("ProfilerStep#1", "user_annotation", 0, 100)
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        trace = {"distributedInfo": info, "traceEvents": [step, *handed, launch, ran, alone, own, gathered]}
        (folder / f"rank{rank}_trace.json").write_text(json.dumps(trace))
    return folder


def sizes(folder: Path) -> list[tuple[str, int | None]]:
    found = tables(folder, "traffic")["traffic"].filter(rank=0).sort("start_ns")
    return found.select("collective", "size_bytes").rows()


@pytest.mark.parametrize("known", [{}, {"Collective name": "nccl:coalesced"}])
def test_a_batch_of_messages_counts_each_of_them(tmp_path: Path, known: dict[str, str]) -> None:
    parts = [("send", 300, 300), ("recv", 200, 200), ("send", 50, 50)]
    written(tmp_path, parts, SENDRECV, **known)
    # sent 300 + 50 and received 200 elements of 4 bytes; the gather after it gives 10 elements alone
    assert sizes(tmp_path) == [("send_recv", 4 * 550), ("all_gather", 40)]
    assert measured(tmp_path, "collective_volume_p2p").value == pytest.approx(4 * 550 / 1e9)
    assert tables(tmp_path, "transfers")["transfers"]["collective"].unique().to_list() == ["all_gather"]


def test_gathers_put_together_are_one_gather_of_all_of_it(tmp_path: Path) -> None:
    parts = [("_allgather_base", 100, 200), ("_allgather_base", 8, 16)]
    written(tmp_path, parts, GATHER, **{"Collective name": "nccl:coalesced"})
    assert sizes(tmp_path) == [("all_gather", 4 * 216), ("all_gather", 40)]


@pytest.mark.parametrize("other", [("_allgather_base", 100, 200), ("send", 100, 100), ("recv", 100, 100)])
def test_other_mixtures_keep_their_bytes_unattributed_and_a_finding_says_so(
    tmp_path: Path, other: tuple[str, int, int]
) -> None:
    parts = [other, ("allreduce", 8, 8)]
    written(tmp_path, parts, GATHER, **{"Collective name": "nccl:coalesced"})
    assert sizes(tmp_path) == [("coalesced", None), ("all_gather", 40)]
    assert "calls-without-size" in codes(tmp_path, "traffic")
