"""What the ranks contradict each other in, and what keeps their calls from being told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.findings import Finding
from ccl_bench.frames import pl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def cross_rank_findings(tables: Mapping[str, object]) -> list[Finding]:
    """Return the findings that follow from those tables across ranks that were computed."""
    found: list[Finding] = []
    for name, look in _LOOKS.items():
        table = tables.get(name)
        if isinstance(table, pl.DataFrame):
            found += look(table)
    return found


def _disagreements(matched: pl.DataFrame) -> list[Finding]:
    key = ["iteration", "group", "number"]
    odd = matched.filter(~pl.col("agrees")).unique(key, keep="first", maintain_order=True)
    if odd.is_empty():
        return []
    first = odd.row(0, named=True)
    message = (
        f"{odd.height} collectives differ between ranks in name or size, first number {first['number']} of "
        f"group {first['group']}; no waiting is told for them"
    )
    return [Finding("collectives-disagree", "error", message, count=odd.height, touches=("matched",))]


def _missing_members(matched: pl.DataFrame) -> list[Finding]:
    key = ["iteration", "group", "number"]
    partial = matched.filter(pl.col("present") < pl.col("size")).unique(key)
    if partial.is_empty():
        return []
    message = (
        f"{partial.height} collectives lack members in the traces: their transfer times are upper bounds and "
        "their waits lower bounds"
    )
    return [Finding("members-missing", "warning", message, count=partial.height, touches=("matched",))]


def _ambiguous_groups(groups: pl.DataFrame) -> list[Finding]:
    unclear = groups.filter("ambiguous")
    if unclear.is_empty():
        return []
    message = (
        f"{unclear.height} process groups do not say who their members are, and more ranks use them than they "
        "have members; their calls are not matched"
    )
    return [Finding("groups-ambiguous", "warning", message, count=unclear.height, touches=("groups",))]


def _unequal_messages(messages: pl.DataFrame) -> list[Finding]:
    odd = messages.filter(~pl.col("agrees"))
    if odd.is_empty():
        return []
    first = odd.row(0, named=True)
    message = (
        f"{odd.height} messages differ in size between sender and receiver, first number {first['number']} "
        f"from rank {first['source']} to rank {first['target']}"
    )
    return [Finding("messages-disagree", "error", message, count=odd.height, touches=("messages",))]


_LOOKS: dict[str, Callable[[pl.DataFrame], list[Finding]]] = {
    "groups": _ambiguous_groups,
    "matched": lambda matched: [*_disagreements(matched), *_missing_members(matched)],
    "messages": _unequal_messages,
}
