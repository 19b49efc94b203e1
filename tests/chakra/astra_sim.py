"""ASTRA-sim in a few lines, from its published source, to read what is written for it: no program of it runs.

Workload.cc: a node starts when those that it depends on have ended; a rank runs one work and one call at a
time; work takes `duration_micros`, at least 1 ns; `pg_name` is a number of the group file. Ring.cc: messages
of a ring and their sizes. BasicTopology.cpp, Switch.cpp, NetworkFunction.cpp: a message takes
`hops · latency + bytes / bandwidth`, with GB of 2^30 bytes; MultiDimTopology.cpp: dimension 0 runs fastest.
What is not accepted there fails here.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from chakra_wire import COMM_COLL_NODE, COMM_RECV_NODE, COMM_SEND_NODE, COMP_NODE, ReadNode, read
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from pathlib import Path

STEP_NS = 40
HOPS = {"Switch": 2, "FullyConnected": 1}
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7


class Network:
    """The analytical network, as NetworkParser.cpp checks it."""

    def __init__(self, path: Path) -> None:
        content: dict[str, list[Any]] = YAML(typ="safe").load(path.read_text())
        assert set(content) == {"topology", "npus_count", "bandwidth", "latency"}
        assert len({len(each) for each in content.values()}) == 1
        assert all(count > 1 for count in content["npus_count"])
        assert all(each > 0 for each in content["bandwidth"])
        assert all(each >= 0 for each in content["latency"])
        self.counts, self.dimensions = content["npus_count"], [*zip(*content.values(), strict=True)]

    def message_ns(self, source: int, target: int, size: float) -> int:
        for topology, count, bandwidth, latency in self.dimensions:
            if source % count != target % count:
                return int(HOPS[topology] * latency + size / (bandwidth * 2**30 / 1e9))
            source, target = source // count, target // count
        raise AssertionError("a message to itself")


def collective_ns(network: Network, ranks: list[int], kind: int, size: int, chunks: int) -> int:
    """Return the time of a collective over a ring of ranks, or to one rank after the other."""
    n = len(ranks)
    steps = {ALL_REDUCE: 2 * (n - 1)}.get(kind, n - 1)
    share = size if kind == ALL_GATHER else size // n
    slowest = max(
        network.message_ns(a, b, share / chunks) for a, b in zip(ranks, [*ranks[1:], ranks[0]], strict=True)
    )
    return chunks * steps * (slowest + STEP_NS)


def simulate(folder: Path) -> dict[int, int]:
    """Return when each rank has finished, ns; a rank that waits for ever fails."""
    network = Network(folder / "network.yml")
    system = json.loads((folder / "system.json").read_text())
    assert system["scheduling-policy"] in ("LIFO", "FIFO")
    for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        ways = system[f"{name}-implementation"]
        assert len(ways) == len(network.counts)
        assert {*ways} <= {"ring", "direct1"}
    assert json.loads((folder / "memory.json").read_text()) == {"memory-type": "NO_MEMORY_EXPANSION"}
    groups: dict[str, list[int]] = json.loads((folder / "comm_group.json").read_text())
    assert all(int(name) > 0 for name in groups)
    nodes = [read(folder / f"workload.{rank}.et")[1] for rank in range(prod(network.counts))]
    assert not (folder / f"workload.{len(nodes)}.et").exists()
    return _Replay(network, groups, nodes, system["preferred-dataset-splits"]).run()


class _Replay:
    def __init__(
        self, network: Network, groups: dict[str, list[int]], nodes: list[list[ReadNode]], chunks: int
    ) -> None:
        self.network, self.groups, self.chunks = network, groups, chunks
        self.work, self.calls = (
            [[n for n in of if (n.type == COMP_NODE) == is_work] for of in nodes] for is_work in (True, False)
        )
        self.ends: list[dict[int, int]] = [{} for _ in nodes]
        self.free = {lane: [0] * len(nodes) for lane in ("work", "call")}
        self.sent: dict[tuple[int, int], list[int]] = {}
        for of_rank in nodes:
            assert [node.id for node in of_rank] == [*range(1, len(of_rank) + 1)]
            assert not any(node.attributes["is_cpu_op"] for node in of_rank)

    def ready(self, rank: int, node: ReadNode, lane: str) -> int | None:
        if not all(before in self.ends[rank] for before in node.data_deps):
            return None
        return max([self.free[lane][rank], *(self.ends[rank][before] for before in node.data_deps)])

    def end(self, rank: int, node: ReadNode, lane: str, at_ns: int) -> None:
        self.ends[rank][node.id] = self.free[lane][rank] = at_ns
        (self.work if lane == "work" else self.calls)[rank].pop(0)

    def run(self) -> dict[int, int]:
        while any(self.step(rank) for rank in range(len(self.ends))):
            pass
        assert not any(map(len, self.work)), "work waits for ever"
        assert not any(map(len, self.calls)), "calls wait for ever"
        return {rank: max(ends.values()) for rank, ends in enumerate(self.ends)}

    def step(self, rank: int) -> bool:
        if self.work[rank]:
            node = self.work[rank][0]
            if (start := self.ready(rank, node, "work")) is not None:
                self.end(rank, node, "work", start + max(1, node.duration_us * 1000))
                return True
        return bool(self.calls[rank]) and self.communicate(rank, self.calls[rank][0])

    def communicate(self, rank: int, node: ReadNode) -> bool:
        start = self.ready(rank, node, "call")
        if start is None:
            return False
        size = node.attributes["comm_size"]
        if node.type == COMM_SEND_NODE:
            assert node.attributes["comm_src"] == rank
            target = node.attributes["comm_dst"]
            arrives = start + self.network.message_ns(rank, target, size)
            self.sent.setdefault((rank, target), []).append(arrives)
            self.end(rank, node, "call", arrives)
            return True
        if node.type == COMM_RECV_NODE:
            assert node.attributes["comm_dst"] == rank
            arrivals = self.sent.get((node.attributes["comm_src"], rank), [])
            if arrivals:
                self.end(rank, node, "call", max(start, arrivals.pop(0)))
            return bool(arrivals) or node.id in self.ends[rank]
        assert node.type == COMM_COLL_NODE
        ranks = self.groups[node.attributes["pg_name"]]
        heads = [self.calls[each][0] if self.calls[each] else None for each in ranks]
        starts = [h and self.ready(each, h, "call") for each, h in zip(ranks, heads, strict=True)]
        keys = [
            h and (h.attributes.get("pg_name"), h.attributes.get("comm_type"), h.attributes["comm_size"])
            for h in heads
        ]
        if None in starts or len({*keys}) > 1:
            return False
        kind = node.attributes["comm_type"]
        assert kind in (ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER)
        until = max(start for start in starts if start is not None)
        until += collective_ns(self.network, ranks, kind, size, self.chunks)
        for each, head in zip(ranks, heads, strict=True):
            assert head is not None
            self.end(each, head, "call", until)
        return True


def output(ends: dict[int, int]) -> str:
    """Return the lines that ASTRA-sim prints, as its documentation and Statistics.cc show them."""
    stamp = "[2025-01-26 23:03:37.384]"
    lines = [f"{stamp} [system::topology] [info] ring of node 0, id: 0"]
    for rank, cycles in sorted(ends.items(), key=lambda end: end[1]):
        exposed = f"exposed communication {cycles // 2} cycles."
        lines += [
            f"{stamp} [workload] [info] sys[{rank}] finished, {cycles} cycles, {exposed}",
            f"{stamp} [statistics] [info] sys[{rank}]. Post statistics processing start.",
            f"{stamp} [statistics] [info] sys[{rank}], Wall time: {cycles}",
            f"{stamp} [statistics] [info] sys[{rank}], Total compute-communication overlap: 22",
        ]
    return "\n".join(lines) + "\n"
