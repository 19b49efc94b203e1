"""Communication of a run as Chakra files, from traces with times, without Execution Traces.

A call depends on the call that ended last before it began, through a work node with the time between the two.
That time covers all other activity of the rank: compute, copies, waiting for the CPU. Concurrent calls stay
concurrent; work concurrent with a call is not in the graph.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.chakra.graph import make_communication, set_time
from ccl_bench.chakra.protobuf import COMPUTE, VERSION, attribute, framed, message
from ccl_bench.chakra.simulator import (
    GROUPS,
    NETWORK,
    SYSTEM,
    refuse_existing_files,
    write_groups,
    write_machine,
)
from ccl_bench.evaluate.load import load_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.run import Run

TABLES = ("known_calls", "groups", "transfers", "devices")
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
) -> tuple[list[ExportedCommunication], list[str]]:
    """Write `chakra.<rank>.et` for each rank, and files for ASTRA-sim; return the files and remarks.

    Raises InputError if no rank communicates in a step, UsageError if a file exists and `force` is not
    given.
    """
    evidence = load_tables(run, TABLES)
    calls = evidence.inputs["known_calls"].drop_nulls("step").drop_nulls("rank")
    if calls.is_empty():
        raise InputError("contains no communication in a step", where=str(run.path), fix=_RECORD)
    first = calls.group_by("rank").agg(pl.col("trace").min())
    calls = calls.join(first, on=["rank", "trace"], how="semi").sort("start_ns", maintain_order=True)
    numbers = group_numbers(evidence.inputs["groups"])
    folder, ranks = Path(directory), sorted(calls["rank"].unique())
    places = [folder / f"chakra.{rank}.et" for rank in ranks]
    refuse_existing_files([*places, *(folder / name for name in (GROUPS, NETWORK, SYSTEM))], force=force)
    files = [
        _write(path, rank, calls.filter(pl.col("rank") == rank), evidence.inputs["groups"], numbers)
        for path, rank in zip(places, ranks, strict=True)
    ]
    members = {
        numbers[group]: list(group_ranks) for group, group_ranks in _members(evidence.inputs["groups"])
    }
    write_groups(folder, members)
    return files, write_machine(run, folder, evidence.inputs, len(ranks))


def _members(groups: pl.DataFrame) -> Iterator[tuple[str, list[int]]]:
    known_groups = groups.drop_nulls("members").sort("group")
    yield from known_groups.select("group", "members").iter_rows()


def group_numbers(groups: pl.DataFrame) -> dict[str, int]:
    """Return {group: number} from 1, equal for groups with the same members: ASTRA-sim needs numbers."""
    distinct = sorted({tuple(members) for _, members in _members(groups)})
    numbers = {members: number for number, members in enumerate(distinct, 1)}
    return {group: numbers[tuple(members)] for group, members in _members(groups)}


def _write(
    path: Path, rank: int, calls: pl.DataFrame, groups: pl.DataFrame, numbers: dict[str, int]
) -> ExportedCommunication:
    sized = calls.join(
        groups.select("group", group_size="size"), on="group", how="left", maintain_order="left"
    )
    nodes = list(_nodes(sized, rank, numbers))
    with storage.write_atomically(path) as temporary, temporary.open("wb") as stream:
        attributes = [attribute("rank", "uint64", rank)]
        stream.write(framed(message("GlobalMetadata")(version=VERSION, attr=attributes)))
        for node in nodes:
            stream.write(framed(node))
    between = [node.duration_micros for node in nodes if node.name == BETWEEN]
    work = sum(node.type == COMPUTE for node in nodes) - len(between)
    moving = len(nodes) - len(between) - work
    return ExportedCommunication(path, rank, len(nodes), moving, work, sum(between) / 1e6)


def _nodes(calls: pl.DataFrame, rank: int, numbers: dict[str, int]) -> Iterator[Any]:
    """Yield the nodes of a rank; calls must come in order of start."""
    ends: list[tuple[int, int]] = []
    """End and node of each call so far, in order of end."""
    number = 0
    for call in calls.iter_rows(named=True):
        place = bisect_right(ends, call["start_ns"], key=lambda end: end[0]) - 1
        before = ends[place][1] if place >= 0 else None
        gap = _work(number + 1, ends[place], call["start_ns"]) if before is not None else None
        if gap is not None:
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


def _work(number: int, last: tuple[int, int], start_ns: int) -> Any:
    """Return the node for the time since a call ended; None if that rounds to zero."""
    node = message("Node")(id=number, name=BETWEEN, type=COMPUTE, data_deps=[last[1]])
    set_time(node, last[0], start_ns - last[0])
    node.attr.append(attribute("is_cpu_op", "bool", value=False))
    return node if node.duration_micros else None
