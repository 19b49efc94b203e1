"""Traffic between pairs of ranks, and the tokens that experts receive."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.arguments import widths
from ccl_bench.analysis.communication.groups import with_groups
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def by_device(tokens: Sequence[int], devices: int) -> list[int]:
    """Return tokens of experts as tokens of devices: each holds as many experts, in order."""
    if len(tokens) % devices:
        raise NotMeasurable(
            f"{len(tokens)} experts do not spread evenly over {devices} devices",
            fix="correct the expert-parallel degree ep in the workload card",
        )
    share = len(tokens) // devices
    return [sum(tokens[first : first + share]) for first in range(0, len(tokens), share)]


def sum_rows(rows: Iterable[Sequence[int]]) -> list[int]:
    """Return the sums of rows place by place; rows must be equally long."""
    return [sum(column) for column in zip(*rows, strict=True)]


def imbalance(tokens: Sequence[int]) -> float:
    """Return the largest over the mean number of tokens of a device; 1 is even."""
    mean = fmean(tokens)
    if not mean:
        raise NotMeasurable("no token went to any expert", fix="record a step in which the model is trained")
    return max(tokens) / mean


def coefficient_of_variation(tokens: Sequence[int]) -> float:
    """Return the coefficient of variation over devices: standard deviation over mean."""
    return pstdev(tokens) / fmean(tokens)


@derived(
    group=("String", "process group"),
    position=("Int64", "place of the other member in the group"),
    calls=("Int64", "all-to-alls"),
    sent_bytes=("Float64", "bytes sent to that member"),
    received_bytes=("Float64", "bytes received from that member"),
)
def exchanges(described_calls: pl.DataFrame, process_groups: pl.DataFrame) -> pl.DataFrame:
    """What one trace exchanged with one member of a group in its all-to-alls.

    Splits are rows of the first dimension; elements over the sum of rows give elements per row. An
    all-to-all without splits sends every member the same, unless it is known not to.
    """
    grouped, groups = with_groups(described_calls, process_groups)
    calls = grouped.filter(pl.col("collective") == "all_to_all").join(
        groups.select("group", count=pl.col("members").list.len()),
        on="group",
        how="left",
        maintain_order="left",
    )
    sent, received = (pl.col(name).list.len().fill_null(0) for name in ("in_split", "out_split"))
    even = (sent == 0) & (received == 0) & ~pl.col("own_sizes") & pl.col("count").is_not_null()
    equal = pl.lit(1, dtype=pl.Int64).repeat_by("count")
    is_known = even | ((sent > 0) & (sent == received))
    split_calls = calls.filter(is_known).with_columns(
        pl.when(even).then(equal).otherwise(name).alias(name) for name in ("in_split", "out_split")
    )
    width = widths(split_calls["dtype"])
    scaled = split_calls.select(
        "group",
        "in_split",
        "out_split",
        sent_per_row=pl.col("in_elements") * width / pl.col("in_split").list.sum(),
        received_per_row=pl.col("out_elements") * width / pl.col("out_split").list.sum(),
        position=pl.int_ranges(0, pl.col("in_split").list.len(), dtype=pl.Int64),
    ).explode("in_split", "out_split", "position")
    return scaled.group_by("group", "position", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        (pl.col("in_split") * pl.col("sent_per_row").fill_nan(0)).sum().alias("sent_bytes"),
        (pl.col("out_split") * pl.col("received_per_row").fill_nan(0)).sum().alias("received_bytes"),
    )


@derived(
    group=("String", "process group"),
    dispatches=("Int64", "all-to-alls that sent tokens to experts"),
    received_rows=("Int64", "rows, that is tokens, received in them"),
)
def expert_rows(described_calls: pl.DataFrame, process_groups: pl.DataFrame) -> pl.DataFrame:
    """The tokens one trace received for its experts in one group.

    A dispatch is followed by a combine that returns the same rows: its splits are those of the
    dispatch the other way round. So a call that undoes an open one is its combine, and any other is a
    dispatch; in the backward pass both come again.
    """
    table = DERIVED.get("expert_rows").table
    if not (described_calls["collective"] == "all_to_all").any():
        return table.empty()
    grouped, _ = with_groups(described_calls, process_groups)
    calls = grouped.filter((pl.col("collective") == "all_to_all") & (pl.col("in_split").list.len() > 0))
    in_order = calls.sort(pl.coalesce("launch_ns", "start_ns"))
    dispatches: dict[str, int] = {}
    received_rows: dict[str, int] = {}
    pending: dict[str, list[tuple[list[int], list[int]]]] = {}
    for group, sent_split, received_split in in_order.select("group", "in_split", "out_split").iter_rows():
        waiting = pending.setdefault(group, [])
        if (received_split, sent_split) in waiting:
            waiting.remove((received_split, sent_split))
            continue
        waiting.append((sent_split, received_split))
        dispatches[group] = dispatches.get(group, 0) + 1
        received_rows[group] = received_rows.get(group, 0) + sum(received_split or [])
    return table.frame(
        {
            "group": [*dispatches],
            "dispatches": [*dispatches.values()],
            "received_rows": [*received_rows.values()],
        }
    )


@derived(
    across_ranks=True,
    source=("Int64", "sending rank"),
    target=("Int64", "receiving rank"),
    kind=("String", "`message` or `all_to_all`"),
    calls=("Int64", "messages, or all-to-alls"),
    bytes=("Float64", "bytes from source to target, as the sender recorded them"),
)
def traffic_matrix(traffic: pl.DataFrame, exchanges: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """What one rank sent to another, where the trace shows it.

    Messages name their partner, all-to-alls their splits. What a ring or tree of another
    collective sends to whom is not in a trace.
    """
    messages = traffic.filter((pl.col("collective") == "send") & pl.col("peer").is_not_null()).select(
        source="rank", target="peer", kind=pl.lit("message"), bytes=pl.col("size_bytes").cast(pl.Float64)
    )
    members = groups.select("group", "members").drop_nulls()
    parts = exchanges.join(members, on="group").select(
        source="rank",
        target=pl.col("members").list.get(pl.col("position"), null_on_oob=True),
        kind=pl.lit("all_to_all"),
        bytes="sent_bytes",
        calls="calls",
    )
    both = pl.concat([messages.with_columns(calls=pl.lit(1, dtype=pl.Int64)), parts], how="diagonal")
    pairs = both.drop_nulls(["source", "target"]).filter(pl.col("source") != pl.col("target"))
    return (
        pairs.group_by("source", "target", "kind")
        .agg(pl.col("calls").sum(), pl.col("bytes").sum())
        .sort("source", "target", "kind")
        .select(*DERIVED.get("traffic_matrix").table.columns)
    )
