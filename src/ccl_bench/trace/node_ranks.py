"""Ranks of traces that are named by local rank: `node0/rank0.json` and `node1/rank0.json`.

The process groups that calls name show how many ranks the job has. Which node holds which of them is
recorded nowhere: launchers number the ranks of one node after those of the node before.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.trace import file_names
from ccl_bench.trace.process_groups import recorded_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.trace.formats import TraceFile

_SEARCHED = 16 << 20
"""Bytes, decompressed, in which a trace of a job of several ranks names its groups."""

_RANKS = re.compile(rb'"Process Group Ranks"\s*+:\s*+"?(\[[\d ,.]{1,9999}\])')
_SIZE = re.compile(rb'"Group size"\s*+:\s*+(\d{1,7})[^{}]*$')

_BEFORE = 600
"""Bytes before the list of ranks in which the size of the group is written."""

_NUMBER = re.compile(r"(\d+)")
_OF_NODE = re.compile(r"(?:node|host|server|machine|nid|pod)[-_.]?\d", re.IGNORECASE)
_OF_RUN = re.compile(r"(?:run|job|trial|attempt|try|exp\w*|test|seed|config|v|version)[-_.]?$", re.IGNORECASE)
"""Words before the number of a run."""

_SHOWN = 3
"""Nodes that a message names."""


class _Group(NamedTuple):
    size: int
    first: int
    last: int
    members: tuple[int, ...]
    """Ranks; empty if the list was cut."""

    def may_hold(self, rank: int) -> bool:
        return rank in self.members if self.members else self.first <= rank <= self.last


Node = dict[tuple["int | None", int], "TraceFile"]
"""Recording window and local rank → trace."""


def names_node(folder: str) -> bool:
    """Whether a path says that a folder is of one of several machines."""
    return _OF_NODE.search(folder) is not None


def with_ranks_of_nodes(traces: Sequence[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces with ranks in place of local ranks, and a finding on what was assumed.

    Ranks stay as they are if calls name no group larger than a node, as in two runs side by side, and where
    nodes, by their place in names, do not have the same ranks and windows.
    """
    by_form: dict[str, dict[str, Node]] = defaultdict(lambda: defaultdict(dict))
    unclear = set()
    for trace in traces:
        place = file_names.place_of_rank(trace.relative)
        if trace.rank is None or trace.rank_source != "name" or trace.form.ends_in_rank or place is None:
            unclear.add(trace.form.name)
            continue
        node = by_form[trace.form.name][place]
        if node.setdefault((trace.iteration, trace.rank), trace) is not trace:
            unclear.add(trace.form.name)
    nodes_of_forms = [
        nodes
        for form, nodes in by_form.items()
        if form not in unclear and len(nodes) > 1 and len({frozenset(node) for node in nodes.values()}) == 1
    ]
    files = [trace for nodes in nodes_of_forms for node in nodes.values() for trace in node.values()]
    groups = {trace.relative: _groups_in(trace) for trace in files}
    size = max((group.last + 1 for of_trace in groups.values() for group in of_trace), default=0)
    ranks: dict[str, int | None] = {}
    messages = []
    for nodes in nodes_of_forms:
        of_nodes, message = _ranks(nodes, groups, size)
        ranks |= of_nodes
        messages += [message] if message else []
    changed = [
        replace(t, rank=ranks[t.relative], rank_source="unknown" if ranks[t.relative] is None else "name")
        if t.relative in ranks
        else t
        for t in traces
    ]
    return changed, [Finding("ranks-local", "warning", message, count=len(ranks)) for message in messages[:1]]


def _groups_in(trace: TraceFile) -> set[_Group]:
    """Return the process groups that calls in the first part of a trace name."""
    try:
        text = storage.read_head(trace.path, _SEARCHED)
    except (OSError, InputError):
        return set()
    groups = set()
    for match in _RANKS.finditer(text):
        listed = match[1].decode()
        if whole := recorded_numbers(listed):
            groups.add(_Group(len(whole), min(whole), max(whole), tuple(whole)))
            continue
        before = text[max(match.start() - _BEFORE, 0) : match.start()]
        size = _SIZE.match(before, max(before.rfind(b'"Group size"'), 0))
        numbers = [int(number) for number in re.findall(r"\d{1,7}", listed)]
        if size and numbers:
            groups.add(_Group(int(size[1]), min(numbers), max(numbers), ()))
    return groups


def _ranks(
    nodes: Mapping[str, Node], groups: Mapping[str, set[_Group]], size: int
) -> tuple[dict[str, int | None], str]:
    """Return the rank of each file, None if it is unknown, and what was assumed; nothing if ranks stay."""
    local = {rank for node in nodes.values() for _, rank in node}
    is_world = size == len(nodes) * len(local) and any(
        group.size == size and group.first == 0 for of_trace in groups.values() for group in of_trace
    )
    ordered, word = _in_order(nodes)
    is_of_nodes = all(map(names_node, nodes)) or (is_world and not _OF_RUN.search(word))
    if size <= len(local) or local != {*range(len(local))} or not is_of_nodes:
        return {}, ""
    names = ordered or [*nodes]
    where = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    conflict = f"{where} have the same ranks, but their calls name {size}: names state local ranks"
    ranks = {
        trace.relative: number * len(local) + rank
        for number, place in enumerate(ordered)
        for (_, rank), trace in nodes[place].items()
    }
    fits = all(group.may_hold(rank) for file, rank in ranks.items() for group in groups[file])
    if is_world and ranks and fits:
        assumed = "ranks follow the order of the nodes, unless ranks.json states others"
        return {**ranks}, f"{conflict}, and {assumed}"
    unknown = dict.fromkeys(trace.relative for node in nodes.values() for trace in node.values())
    return unknown, f"{conflict}, and the ranks are unknown; state them in ranks.json"


def _in_order(nodes: Iterable[str]) -> tuple[list[str], str]:
    """Return the places of nodes in the order of the only number in which they differ, and what is before it.

    Without such a number there is no order.
    """
    parts = {place: _NUMBER.split(place) for place in nodes}
    texts = {tuple(each[::2]) for each in parts.values()}
    numbers = [[int(number) for number in each[1::2]] for each in parts.values()]
    differing = [place for place, column in enumerate(zip(*numbers, strict=False)) if len({*column}) > 1]
    if len(texts) > 1 or len(differing) != 1:
        return [], ""
    at = 2 * differing[0] + 1
    return sorted(parts, key=lambda place: int(parts[place][at])), next(iter(texts))[differing[0]]
