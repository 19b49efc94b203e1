"""Ranks of traces that are named by local rank, in one run of several nodes and in several runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from writing import compact, kernel

from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

ALL = "[0, 1, 2, 3]"


def write_nodes(folder: Path, files: list[str], *groups: str, size: int | None = None) -> list[str]:
    """Write traces whose calls name groups, in order of ranks; return their names."""
    for number, name in enumerate(files):
        args = [({"Group size": size} if size else {}) | {"Process Group Ranks": group} for group in groups]
        calls = [
            kernel("ncclDevKernel", 20 * at, 7 + number, **{"Collective name": "allreduce"}, **arg)
            for at, arg in enumerate(args)
        ]
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(compact(calls or [kernel("gemm", 0, 7 + number)]))
    return files


def found(folder: Path) -> tuple[dict[str, int | None], set[str]]:
    run = open_run(folder)
    return {t.relative: t.rank for t in run.traces}, {f.code for f in run.findings}


@pytest.mark.parametrize(
    "pattern",
    [
        ("node0/rank{}.json", "node1/rank{}.json"),
        ("node3/rank{}_trace.json", "node4/rank{}_trace.json"),
        ("gpu-a-9/rank{}.json", "gpu-a-10/rank{}.json"),
        ("traces/host07/out/rank{}.json", "traces/host12/out/rank{}.json"),
        ("host07_rank{}.json", "host12_rank{}.json"),
        ("node0/kineto_trace_{}.json", "node1/kineto_trace_{}.json"),
        ("node0/iteration_5/rank{}.json", "node1/iteration_5/rank{}.json"),
    ],
)
def test_ranks_of_numbered_nodes_follow_each_other(tmp_path: Path, pattern: tuple[str, str]) -> None:
    files = write_nodes(tmp_path, [name.format(rank) for name in pattern for rank in (0, 1)], ALL)
    assert found(tmp_path) == (dict(zip(files, range(4), strict=True)), {"ranks-local"})


def test_each_window_of_nodes_has_all_ranks(tmp_path: Path) -> None:
    names = [f"node{node}/iteration_{w}/rank{r}.json" for w in (1, 2) for node in (0, 1) for r in (0, 1)]
    files = write_nodes(tmp_path, names, ALL)
    assert found(tmp_path)[0] == dict(zip(files, [*range(4), *range(4)], strict=True))


def test_a_group_of_which_the_list_was_cut_counts_with_its_size(tmp_path: Path) -> None:
    names = [f"node{node}/rank{rank}.json" for node in range(8) for rank in range(4)]
    ranks = dict(zip(names, range(32), strict=True))
    write_nodes(tmp_path, names, "[0, 1, 2, ..., 31]", size=32)
    assert found(tmp_path) == (ranks, {"ranks-local"})
    write_nodes(tmp_path, names, "[0, 1, 2, ..., 31]", size=8)
    assert found(tmp_path)[0] == dict.fromkeys(names)


NODES = [f"node{node}/rank{rank}.json" for node in (0, 1) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([f"{host}/rank{rank}.json" for host in ("alice", "bob") for rank in (0, 1)], [ALL]),
        ([f"r{host}/rank{rank}.json" for host in ("1-2", "2-1") for rank in (0, 1)], [ALL]),
        (NODES, ["[0, 1, 2, 3, 4, 5, 6, 7]"]),
        (NODES, [ALL, "[2, 3]"]),
    ],
    ids=["no numbers", "two numbers", "nodes lack", "groups contradict"],
)
def test_ranks_that_are_not_certain_are_unknown(tmp_path: Path, names: list[str], groups: list[str]) -> None:
    write_nodes(tmp_path, names, *groups)
    assert found(tmp_path) == (dict.fromkeys(names), {"ranks-local", "rank-unknown"})
    (fix,) = {f.message for f in open_run(tmp_path).findings if f.code == "ranks-local"}
    assert fix.endswith("the ranks are unknown; state them in ranks.json")


@pytest.mark.parametrize(
    ("folders", "groups"),
    [
        (("a", "b"), ["[0, 1]"]),
        (("node0", "node1"), ["[0, 1]"]),
        (("node0", "node1"), []),
        (("run1", "run2"), [ALL]),
        (("base", "faster"), ["[0, 1, 2, 3, 4, 5, 6, 7]"]),
    ],
)
def test_two_runs_with_the_same_ranks_stay_two_runs(
    tmp_path: Path, folders: tuple[str, str], groups: list[str]
) -> None:
    write_nodes(tmp_path, [f"{folder}/rank{rank}.json" for folder in folders for rank in (0, 1)], *groups)
    ranks, codes = found(tmp_path)
    assert ([*ranks.values()], "several-runs" in codes, "ranks-local" in codes) == ([0, 1], True, False)


def test_ranks_that_a_map_states_are_used(tmp_path: Path) -> None:
    write_nodes(tmp_path, NODES, ALL)
    (tmp_path / "ranks.json").write_text(
        '{"node0/rank0.json": 2, "node0/rank1.json": 3, "node1/rank0.json": 0, "node1/rank1.json": 1}'
    )
    assert found(tmp_path) == (dict(zip(NODES, (2, 3, 0, 1), strict=True)), set())
