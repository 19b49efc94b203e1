"""Findings about communication: where ranks contradict each other, and why calls cannot be matched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.messages import MESSAGES
from ccl_bench.analysis.execution_trace.findings import disagreements, unlinked
from ccl_bench.base.counting import counted
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.collectives import collectives as known_collectives

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


_KEY = ["iteration", "group", "number"]
"""The columns that identify a collective."""


def _disagreements(matched: pl.DataFrame) -> list[Finding]:
    """Report what ranks of a recorded group contradict each other in; an assumed one proves nothing."""
    known = matched.filter(~pl.col("agrees"), pl.col("size").is_not_null())
    odd = known.unique(_KEY, keep="first", maintain_order=True)
    if odd.is_empty():
        return []
    first = odd.row(0, named=True)
    message = (
        f"{odd.height} collectives differ between ranks in name or size, first number {first['number']} of "
        f"group {first['group']}; their waiting is unknown"
    )
    return [Finding("collectives-disagree", "error", message, count=odd.height, touches=("matched",))]


def _missing_members(matched: pl.DataFrame) -> list[Finding]:
    partial = matched.filter(pl.col("present") < pl.col("size")).unique(_KEY)
    if partial.is_empty():
        return []
    message = (
        f"{partial.height} collectives lack members in the traces: their transfer times are upper bounds and "
        "their waits lower bounds"
    )
    return [Finding("members-missing", "warning", message, count=partial.height, touches=("matched",))]


def _lacking(matched: pl.DataFrame) -> list[Finding]:
    """Report in how many steps some traces lack collectives that others have, and what waits rest on then."""
    steps = matched.drop_nulls("step").unique(["iteration", "step", "trace"])
    broken = steps.filter(pl.col("gaps") > 0)
    if broken.is_empty():
        return []
    count, total = (table.select("iteration", "step").n_unique() for table in (broken, steps))
    lacking = broken.filter(pl.col("lacks") > 0)
    ranks = ", ".join(map(str, lacking["rank"].drop_nulls().unique().sort()))
    used = (
        f"waits are taken from the other {total - count}"
        if count < total
        else "waits are taken from the traces that lack only a few"
    )
    message = (
        f"in {count} of {total} steps traces lack collectives that others of their groups have"
        f"{f' (ranks {ranks})' if ranks else ''}; {used}"
    )
    return [Finding("collectives-lacking", "warning", message, count=count, touches=("waits", "call_parts"))]


def _refused_arrivals(arrivals: pl.DataFrame) -> list[Finding]:
    refused = arrivals.filter(pl.col("order").is_null())
    if refused.is_empty():
        return []
    message = (
        f"the order of arrival at {refused.height} of {arrivals.height} collectives is unknown: the "
        "uncertainty of the clocks exceeds the time between arrivals"
    )
    return [Finding("arrival-refused", "note", message, count=refused.height, touches=("arrivals",))]


def _ambiguous_groups(groups: pl.DataFrame) -> list[Finding]:
    unclear = groups.filter("ambiguous")
    if unclear.is_empty():
        return []
    message = (
        f"{unclear.height} process groups do not list their members, and several may share a name; "
        "their calls are not matched"
    )
    return [Finding("groups-ambiguous", "warning", message, count=unclear.height, touches=("groups",))]


def _groups_off_the_mesh(groups: pl.DataFrame) -> list[Finding]:
    off = groups.filter("contradicts_mesh")
    if off.is_empty():
        return []
    first = off.row(0, named=True)
    message = (
        f"{off.height} process groups are described as one axis but lie along another in the stated mesh, "
        f"first {first['group']}: stages, and dimensions of groups without a description, may be wrong"
    )
    return [Finding("mesh-contradicted", "warning", message, count=off.height, touches=("groups",))]


def _assumed_groups(matched: pl.DataFrame) -> list[Finding]:
    assumed = matched.filter(pl.col("size").is_null())
    if assumed.is_empty():
        return []
    silent = assumed["group"].n_unique()
    message = (
        f"{silent} process groups have no recorded members or size; calls on the same stream are treated as "
        "one group of all ranks that use it"
    )
    if unfit := assumed.filter(~pl.col("agrees"))["group"].n_unique():
        message += f"; the calls of {unfit} do not match, and their waiting is unknown"
    return [Finding("groups-assumed", "warning", message, count=silent, touches=("matched",))]


def _unequal_messages(messages: pl.DataFrame) -> list[Finding]:
    odd = messages.filter(~pl.col("agrees"))
    if odd.is_empty():
        return []
    first = odd.row(0, named=True)
    message = (
        f"{counted(odd.height, 'message differs', 'messages differ')} in size between sender and receiver, "
        f"first number {first['number']} from rank {first['source']} to rank {first['target']}"
    )
    return [Finding("messages-disagree", "error", message, count=odd.height, touches=("messages",))]


def _without_size(traffic: pl.DataFrame) -> list[Finding]:
    silent = traffic.filter(pl.col("size_bytes").is_null() & pl.col("collective").is_in(_sized_collectives()))
    if silent.is_empty():
        return []
    names = ", ".join(silent["collective"].unique().sort())
    message = f"{silent.height} of {traffic.height} communication calls have no recorded size ({names})"
    return [Finding("calls-without-size", "warning", message, count=silent.height, touches=("traffic",))]


def _even_assumed(table: pl.DataFrame, *touches: str) -> list[Finding]:
    """Report exchanges of which nothing says whether their parts are even."""
    silent = table.filter(pl.col("uneven").is_null()).height
    if not silent:
        return []
    message = (
        f"{silent} all-to-alls of ranks record no split sizes and are taken as even: if they are not, their "
        "sizes and waiting are wrong"
    )
    return [Finding("splits-unknown", "warning", message, count=silent, touches=touches)]


def _unpaired(traffic: pl.DataFrame) -> list[Finding]:
    """Report ranges of gloo that no operator describes: they are named as gloo carries them out."""
    lone = traffic.filter(~pl.col("is_paired"))
    if lone.is_empty():
        return []
    names = ", ".join(lone["collective"].unique().sort())
    message = (
        f"which operators started {lone.height} of {traffic.height} ranges of gloo is not certain ({names}): "
        "a reduce-scatter may be among the all-reduces, and groups and sizes may be missing"
    )
    return [Finding("calls-unpaired", "warning", message, count=lone.height, touches=("calls",))]


def _peers(traffic: pl.DataFrame) -> list[Finding]:
    """Report messages whose other end is this rank itself, or not known."""
    messages = traffic.filter(pl.col("collective").is_in(MESSAGES))
    found = []
    if to_self := messages.filter(pl.col("peer") == pl.col("rank")).height:
        message = (
            f"{counted(to_self, 'message goes', 'messages go')} from a rank to itself: "
            "the trace names the wrong rank, so senders and receivers are unknown"
        )
        touches = ("traffic", "bubbles", "traffic_matrix")
        found.append(Finding("message-to-self", "error", message, count=to_self, touches=touches))
    if silent := messages["peer"].null_count():
        message = f"{silent} of {messages.height} sends and receives do not name the other rank"
        found.append(Finding("peers-unknown", "warning", message, count=silent, touches=("traffic",)))
    return found


def _sized_collectives() -> list[str]:
    """Return the collectives that move something; of `coalesced` calls the parts may be unknown."""
    return [name for name, facts in known_collectives().items() if facts.transfers]


def _unmatched_messages(bubbles: pl.DataFrame) -> list[Finding]:
    count = int(bubbles["unmatched"].sum())
    if not count:
        return []
    message = (
        f"{count} exposed messages have no recorded partner; their whole time counts as waiting, "
        "so bubbles are upper bounds"
    )
    return [Finding("messages-unmatched", "warning", message, count=count, touches=("bubbles",))]


_LOOKS: dict[str, Callable[[pl.DataFrame], list[Finding]]] = {
    "groups": lambda groups: [*_ambiguous_groups(groups), *_groups_off_the_mesh(groups)],
    "matched": lambda matched: [
        *_disagreements(matched),
        *_missing_members(matched),
        *_lacking(matched),
        *_assumed_groups(matched),
        *_even_assumed(matched, "waits", "call_parts"),
    ],
    "messages": _unequal_messages,
    "arrivals": _refused_arrivals,
    "traffic": lambda traffic: [
        *_without_size(traffic),
        *_even_assumed(traffic, "traffic"),
        *_unpaired(traffic),
        *_peers(traffic),
    ],
    "et_agreement": disagreements,
    "et_links": unlinked,
    "bubbles": _unmatched_messages,
}

LOOKED_AT = tuple(_LOOKS)
"""Tables in which findings are looked for, in the order in which they are reported."""
