"""Which rank each process of a report of Nsight Systems is, written into `ranks.json` where that is known."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ccl_bench.errors import InputError
from ccl_bench.run.completeness import RANK_MAP
from ccl_bench.storage import replacing
from ccl_bench.trace.formats.nsys import NSYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ccl_bench.trace.formats import Part

_SUFFIXES = (".nsys-rep", ".qdrep")
_NODE = re.compile(r"_node(\d+)_")
_PID = re.compile(r"pid(\d+)")


class _Process(NamedTuple):
    """One process of one report."""

    name: str
    """What stands for it in `ranks.json`."""
    node: int
    part: Part


def ranked(target: Path, known: Sequence[dict[str, Any]]) -> list[str]:
    """Write the ranks of processes that do not say theirs; return what had to be assumed.

    `known` are the processes that recorded themselves, with `rank`, `node` and `pid`. Reports of
    several nodes without any are taken in the order of the nodes, as torchrun orders nodes by name.
    """
    path = target / RANK_MAP
    if path.exists() or NSYS.in_parts is None:
        return []
    try:
        silent = [process for process in _processes(target) if process.part.identity.rank is None]
    except InputError as error:
        return [str(error)]
    remarks = []
    ranks = _by_process(silent, known)
    if not ranks and len({process.node for process in silent}) > 1:
        ranks = _by_node(silent)
        if ranks:
            remarks.append("ranks in reports of several nodes are taken in the order of the nodes")
    if ranks:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(ranks, indent=2) + "\n", encoding="utf-8")
            temporary.chmod(0o644)
    return remarks


def _processes(target: Path) -> Iterator[_Process]:
    """Yield the processes of every report in the directory, in order."""
    for path in sorted(path for path in target.iterdir() if path.suffix in _SUFFIXES):
        node = _NODE.search(path.name)
        for part in NSYS.in_parts.parts(path) if NSYS.in_parts else ():
            name = f"{path.name}#{part.id}" if part.id else path.name
            yield _Process(name, int(node[1]) if node else 0, part)


def _by_process(silent: Sequence[_Process], known: Sequence[dict[str, Any]]) -> dict[str, int]:
    ranks = {(each["node"], each["pid"]): each["rank"] for each in known}
    found = {}
    for process in silent:
        pid = _PID.search(process.part.id)
        rank = ranks.get((process.node, int(pid[1]))) if pid else None
        if rank is not None:
            found[process.name] = rank
    return found


def _by_node(silent: Sequence[_Process]) -> dict[str, int]:
    """Return node times processes of a node plus place in the order of devices, where all are known."""
    nodes = sorted({process.node for process in silent})
    counts = {sum(process.node == node for process in silent) for node in nodes}
    if len(counts) != 1 or any(process.part.local_rank is None for process in silent):
        return {}
    size = counts.pop()
    return {p.name: nodes.index(p.node) * size + (p.part.local_rank or 0) for p in silent}
