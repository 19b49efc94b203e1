"""Where ranks meet: collectives and messages, as the analysis matches them, else as their times allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.base.counting import counted
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.whatif.inferred_messages import infer_messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MESSAGES = ("send", "recv")

_EARLY_NS = 50_000
"""By how much clocks may differ, ns; a call that ends earlier before another starts does not meet it."""


@dataclass(frozen=True)
class Meetings:
    """Which operations meet."""

    pairs: pl.DataFrame
    """`row` of an operation and number of its `meeting`."""
    stages: Mapping[int, int]
    """Rank → its pipeline stage, where messages show it."""
    findings: tuple[Finding, ...] = ()


def find_meetings(operations: pl.DataFrame, tables: Mapping[str, Any]) -> Meetings:
    """Return where operations of several ranks meet.

    Calls that the analysis cannot match, since the traces do not record their group or their peer, are
    matched by their times where one way fits; a finding says so.
    """
    members = _matched(tables)
    called = operations.drop_nulls("call")
    known = called.join(members, on=["trace", "call"], maintain_order="left").select("row", "meeting")
    rest = called.join(known, on="row", how="anti", maintain_order="left").drop_nulls("rank")
    several = operations["rank"].n_unique() > 1
    found = [known.unique("row", maintain_order=True)]
    findings: list[Finding] = []
    stages: dict[int, int] = {}
    if several and not rest.is_empty():
        collectives = rest.filter(~pl.col("collective").is_in(MESSAGES))
        groups = _listed_groups(tables["listed_groups"], operations)
        for (name,), calls in collectives.group_by("collective", maintain_order=True):
            found.append(_by_largest_group(calls, groups))
            findings += _inferred(found[-1], f"groups of {name}")
        messages, stages = infer_messages(rest.filter(pl.col("collective").is_in(MESSAGES)))
        found.append(messages)
        findings += _inferred(messages, "peers of messages")
    return Meetings(_numbered(found), stages, tuple(findings))


def _matched(tables: Mapping[str, Any]) -> pl.DataFrame:
    """Return the calls that the analysis has matched: `trace`, `call`, and number of their `meeting`."""
    key = pl.struct("iteration", "group", "number").rank("dense").cast(pl.Int64)
    matched: pl.DataFrame = tables["matched"]
    collectives = matched.filter("agrees").select("trace", "call", meeting=key)
    first = collectives.height + 1
    numbered = tables["messages"].select(
        pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("meeting"), pl.exclude("number")
    )
    sides = [
        numbered.select(trace=f"{side}_trace", call=f"{side}_call", meeting="meeting") for side in MESSAGES
    ]
    calls: pl.DataFrame = pl.concat([collectives, *sides])
    return calls


def _numbered(found: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return pairs of several sources with meetings numbered from 0."""
    marked = [table.with_columns(source=pl.lit(number)) for number, table in enumerate(found)]
    meeting = pl.struct("source", "meeting").rank("dense").cast(pl.Int64) - 1
    pairs: pl.DataFrame = pl.concat(marked).select("row", meeting.alias("meeting"))
    return pairs


def _inferred(pairs: pl.DataFrame, what: str) -> list[Finding]:
    if pairs.is_empty():
        return []
    message = f"the {what} are not recorded; {counted(pairs.height, 'call is', 'calls are')} matched by time"
    return [Finding("meetings-inferred", "warning", message, count=pairs.height)]


def _listed_groups(listed: pl.DataFrame, operations: pl.DataFrame) -> list[list[tuple[int, ...]]]:
    """Return families of groups, the largest first; those of one family hold each rank at most once."""
    everyone = tuple(sorted(operations["rank"].drop_nulls().unique()))
    families: dict[str, set[tuple[int, ...]]] = {"all ranks": {everyone}}
    for kind, ranks in listed.select("kind", "ranks").iter_rows():
        families.setdefault(kind, set()).add(tuple(ranks))
    disjoint = [
        family for family in families.values() if len({r for g in family for r in g}) == sum(map(len, family))
    ]
    return sorted(map(sorted, disjoint), key=lambda family: -max(map(len, family)))


def _by_largest_group(calls: pl.DataFrame, families: Sequence[Sequence[tuple[int, ...]]]) -> pl.DataFrame:
    """Return the k-th calls of the members of the largest groups where none ends before all start."""
    callers = set(calls["rank"].unique())
    counted = calls.sort("start_ns", maintain_order=True).with_columns(k=pl.int_range(pl.len()).over("rank"))
    for family in families:
        group_of = {rank: number for number, group in enumerate(family) for rank in group}
        if not callers <= group_of.keys():
            continue
        group = pl.col("rank").replace_strict(group_of, return_dtype=pl.Int64)
        placed = counted.with_columns(group=group)
        key = ["group", "k"]
        fits = placed.group_by(key).agg(
            (pl.col("end_ns").min() >= pl.col("start_ns").max() - _EARLY_NS).alias("fits"), pl.len()
        )
        sizes = fits.group_by("group").agg(pl.col("len").n_unique() == 1, pl.col("fits").all())
        if sizes["len"].all() and sizes["fits"].all() and (fits["len"] > 1).all():
            return placed.select("row", meeting=pl.struct(key).rank("dense").cast(pl.Int64))
    return pl.DataFrame(schema={"row": pl.Int64, "meeting": pl.Int64})
