"""Communication of a run as Chakra files, from traces with times, without Execution Traces.

A call depends on the call that ended last before it began, through a work node with the time between the two.
That time covers all other activity of the rank: compute, copies, waiting for the CPU. Concurrent calls stay
concurrent; work concurrent with a call is not in the graph.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.chakra.graph import make_communication, set_time
from ccl_bench.chakra.protobuf import COMPUTE, VERSION, attribute, framed, message
from ccl_bench.chakra.simulator import refuse_existing_files
from ccl_bench.chakra.workload import group_members, group_numbers
from ccl_bench.evaluate.load import load_tables
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccl_bench.run import Run

TABLES = ("known_calls", "groups")
GROUPS = "comm_group.json"
"""Name of the file with the ranks of each group, as ASTRA-sim reads it."""

BETWEEN = "between calls"
"""Name of the nodes for the time between two calls."""

_RECORD = "record it with torch.profiler over whole steps, with prof.step() in each, on every rank"


@dataclass(frozen=True, slots=True)
class ExportedCommunication:
    """One written file."""

    path: Path
    rank: int
    nodes: int
    collectives: int
    """Number of communication nodes among them."""
    untyped: int
    """Calls written as work nodes: their size is unknown, or Chakra has no type for them."""
    between_s: float
    """Time between calls, s."""


def export_communication(
    run: Run, directory: str | Path, *, force: bool = False
) -> list[ExportedCommunication]:
    """Write `chakra.<rank>.et` for each rank, and the ranks of each group; return the files of ranks.

    Raises InputError if no rank communicates in a step, UsageError if a file exists and `force` is not
    given.
    """
    evidence = load_tables(run, TABLES)
    calls = evidence.inputs["known_calls"].drop_nulls("step").drop_nulls("rank")
    if calls.is_empty():
        raise InputError("contains no communication in a step", where=str(run.path), fix=_RECORD)
    groups = evidence.inputs["groups"]
    first = calls.group_by("rank").agg(pl.col("trace").min())
    calls = calls.join(first, on=["rank", "trace"], how="semi").sort("start_ns", maintain_order=True)
    sizes = groups.select("group", group_size="size")
    calls = calls.join(sizes, on="group", how="left", maintain_order="left")
    numbers = group_numbers(groups)
    folder, ranks = Path(directory), sorted(calls["rank"].unique())
    places = [folder / f"chakra.{rank}.et" for rank in ranks]
    refuse_existing_files([*places, folder / GROUPS], force=force)
    files = []
    for path, rank in zip(places, ranks, strict=True):
        nodes = list(_nodes(calls.filter(pl.col("rank") == rank), rank, numbers))
        with storage.write_atomically(path) as temporary, temporary.open("wb") as stream:
            attributes = [attribute("rank", "uint64", rank)]
            stream.write(framed(message("GlobalMetadata")(version=VERSION, attr=attributes)))
            for node in nodes:
                stream.write(framed(node))
        between = [node.duration_micros for node in nodes if node.name == BETWEEN]
        work = sum(node.type == COMPUTE for node in nodes) - len(between)
        moving = len(nodes) - len(between) - work
        files.append(ExportedCommunication(path, rank, len(nodes), moving, work, sum(between) / 1e6))
    replace_text(folder / GROUPS, groups_text(group_members(groups)))
    return files


def groups_text(members: Mapping[int, Sequence[int]]) -> str:
    """Return the ranks of each numbered group in JSON, as ASTRA-sim reads them."""
    return json.dumps({str(number): list(ranks) for number, ranks in members.items()}) + "\n"


def _nodes(calls: pl.DataFrame, rank: int, numbers: dict[str, int]) -> Iterator[Any]:
    """Yield the nodes of a rank; calls must come in order of start."""
    ends: list[tuple[int, int]] = []
    """End and node of each call so far, in order of end."""
    number = 0
    for call in calls.iter_rows(named=True):
        place = bisect_right(ends, call["start_ns"], key=lambda end: end[0]) - 1
        before = None
        if place >= 0:
            end_ns, before = ends[place]
            gap = message("Node")(id=number + 1, name=BETWEEN, type=COMPUTE, data_deps=[before])
            set_time(gap, end_ns, call["start_ns"] - end_ns)
            gap.attr.append(attribute("is_cpu_op", "bool", value=False))
            if gap.duration_micros:  # else the next call begins within half a microsecond
                number, before = number + 1, number + 1
                yield gap
        number += 1
        node = message("Node")(id=number, name=str(call["name"]), type=COMPUTE)
        set_time(node, call["start_ns"], call["end_ns"] - call["start_ns"])
        node.data_deps.extend([] if before is None else [before])
        node.attr.append(attribute("is_cpu_op", "bool", value=False))
        if call["sent_bytes"] is not None or call["received_bytes"] is not None:
            sizes = {"in_bytes": call["sent_bytes"], "out_bytes": call["received_bytes"]}
            group = numbers.get(call["group"])
            make_communication(node, call | sizes | {"group_name": group and str(group)}, rank)
        ends.insert(bisect_right(ends, (call["end_ns"], number)), (call["end_ns"], number))
        yield node
