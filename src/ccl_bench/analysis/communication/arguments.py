"""The arguments of communication calls, joined from wherever the trace recorded them, and their bytes.

A range of gloo says little. The operator that started it says more, where kind, size and time are
certain about which one that is.

Which operand is the message is data of the catalogue: the sum's buffer of an all-reduce,
the gathered side of an all-gather, the scattered side of a reduce-scatter. Bytes are counted as nccl-tests
counts them. An uneven all-to-all counts the larger of what goes to and comes from others. A group of one
moves nothing. A call without recorded size stays unattributed: null, never zero.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from ccl_bench.analysis.names import OTHER, call_collectives, has_own_sizes, map_distinct
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import collectives, dtypes
from ccl_bench.catalog.collectives import carried_out_by_gloo

if TYPE_CHECKING:
    from collections.abc import Container


def pair_with_operators(ranges: pl.DataFrame, operators: pl.DataFrame) -> pl.Series:
    """Return for each range the number of the operator that started it, null if that is not certain.

    Both have `start_ns`, `collective` and `elements`, operators also `said`: the same for two of which it
    does not matter who started which.
    """
    unknown = pl.Series("operator", [None], dtype=pl.Int64).new_from_index(0, ranges.height)
    if ranges.is_empty() or operators.is_empty():
        return unknown
    carried_out = carried_out_by_gloo()
    kind = pl.col("collective").replace(carried_out) if carried_out else pl.col("collective")
    common = (
        "start_ns",
        kind.alias("kind"),
        "elements",
        pl.int_range(pl.len(), dtype=pl.Int64).alias("number"),
    )
    range_starts = ranges.select(
        *common, pl.lit(None, dtype=pl.UInt64).alias("said"), is_range=pl.lit(value=True)
    )
    operator_starts = operators.select(*common, "said", is_range=pl.lit(value=False))
    starts = pl.concat([operator_starts, range_starts]).sort("start_ns", "is_range", maintain_order=True)
    # Where a trace has no sizes of the ranges, or of the operators, of a kind, the kind alone must do.
    has_sizes = pl.col("elements").is_not_null().any().over("kind", "is_range").all().over("kind")
    fit = ["kind", "elements"]
    balance = pl.when("is_range").then(-1).otherwise(1).cum_sum().over(fit)
    lowest = pl.min_horizontal(balance.cum_min().over(fit), 0)
    # `open` operators wait for their range. A range that begins while there are none was started before the
    # recording.
    under_way = (
        starts.with_columns(pl.when(has_sizes).then("elements"))
        .with_columns(lowest=lowest, open=balance - lowest)
        .filter(pl.col("lowest") >= pl.col("lowest").shift(1, fill_value=0).over(fit))
    )
    spell = [*fit, "spell"]
    certain = (pl.col("said").drop_nulls().n_unique() == 1) & (pl.col("open").last() == 0)
    pairs = (
        under_way.with_columns(spell=pl.col("open").eq(0).shift(1, fill_value=False).cum_sum().over(fit))
        .with_columns(
            certain=certain.over(spell),
            turn=pl.int_range(pl.len(), dtype=pl.Int64).over([*fit, "is_range"]),
        )
        .filter("certain")
        .with_columns(started_by=pl.when(~pl.col("is_range")).then("number").max().over([*fit, "turn"]))
        .filter("is_range")
    )
    return unknown.scatter(pairs["number"], pairs["started_by"])


SOURCES = ("kernel", "host", "op", "custom", "nccl", "library", "gloo")
"""Kernel arguments, `record_param_comms`, `c10d::*` and other operators, `nccl:*` and `gloo:*` ranges."""

ARGUMENTS = (
    "dtype",
    "in_elements",
    "out_elements",
    "in_split",
    "out_split",
    "group_size",
    "group_name",
    "group_description",
    "group_ranks",
    "group_start",
    "group_stride",
    "sequence",
    "peer",
    "peer_position",
)

SPLITS = ("in_split", "out_split")

EXCHANGE = "all_to_all"

_GROUP = ("group_size", "group_name", "group_description", "group_start", "group_stride")

TOGETHER = ("coalesced", "send_recv")
"""Name of a kernel that carries out several calls."""


def launched(calls: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return kernel calls with the time and thread of their launch, null if not recorded."""
    starts = launches.filter(launches["correlation"].is_in(calls["correlation"].implode())).select(
        "correlation", pl.col("start_ns").alias("launch_ns"), pl.col("thread").alias("launch_thread")
    )
    first = starts.drop_nulls("correlation").unique("correlation", keep="first", maintain_order=True)
    return calls.join(first, on="correlation", how="left", maintain_order="left")


def with_kernel_arguments(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return launched kernel calls with their arguments and the collective as it was recorded.

    The arguments are those of the kernel, and of the innermost range of each other source around the launch.
    """
    described = _described(collectives)
    kernel_arguments = _renamed(described, "kernel").unique(
        ["correlation", "start_ns"], keep="first", maintain_order=True
    )
    joined = calls.join(kernel_arguments, on=["correlation", "start_ns"], how="left", maintain_order="left")
    recorded = set(collectives["source"].unique())
    enclosing = [source for source in SOURCES[1:6] if source in recorded]
    launches = calls.select("launch_ns", "launch_thread").with_row_index("row").sort("launch_ns")
    for source in enclosing:
        ranges = _renamed(described, source).sort("start_ns")
        number = pl.int_range(pl.len(), dtype=pl.UInt32)
        spans = ranges.select(launch_ns="start_ns", until_ns="end_ns", launch_thread="thread", range=number)
        innermost = launches.join_asof(
            spans, on="launch_ns", by="launch_thread", strategy="backward", check_sortedness=False
        )
        inside = pl.col("launch_ns") < pl.col("until_ns")
        around = innermost.select(pl.when(inside).then("range").sort_by("row")).to_series()
        stated_columns = [column for column in ranges.iter_columns() if column.null_count() < column.len()]
        joined = joined.hstack([column[around] for column in stated_columns if column.name not in _PLACE])
    return _with_parts(_first_known(joined, ("kernel", *enclosing)), collectives)


def _with_parts(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Fill in kernels that carry out several calls, from the operators that were put together for each.

    Those ended before the launch without a launch of their own, after the previous one of their thread. Parts
    of one kind are a call of that kind; sends and receives are `send_recv`, with what goes each way. Of
    other mixtures the size stays unknown.
    """
    sizes = pl.col("in_elements", "out_elements").is_null()
    together = pl.coalesce("recorded", "by_name").is_in(TOGETHER) & pl.all_horizontal(sizes)
    rows = calls.with_row_index("_row").with_columns(together.alias("_together"))
    parts = _parts(rows, collectives) if rows["_together"].any() else rows.clear()
    if parts.is_empty():
        return calls
    arguments = ["recorded", "dtype", "in_elements", "out_elements", *_GROUP]
    one = [pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).alias(name) for name in _GROUP]
    is_message = pl.col("recorded").is_in(["send", "recv"]).all()
    kind = pl.when(pl.col("recorded").n_unique() == 1).then(pl.col("recorded").first())
    sent = pl.col("in_elements").filter(pl.col("recorded") != "recv")
    received = pl.col("out_elements").filter(pl.col("recorded") != "send")
    part_arguments = parts.group_by("_row").agg(
        pl.coalesce(kind, pl.when(is_message).then(pl.lit("send_recv"))).alias("recorded"),
        pl.when(pl.col("dtype").n_unique() == 1).then(pl.col("dtype").first()).alias("dtype"),
        *(
            pl.when(side.count() > 0, side.null_count() == 0).then(side.sum()).alias(name)
            for name, side in (("in_elements", sent), ("out_elements", received))
        ),
        *one,
    )
    joined = rows.join(part_arguments, on="_row", how="left", maintain_order="left", suffix=" of parts")
    is_known = pl.col("recorded of parts").is_not_null()
    filled = [
        pl.when(is_known).then(pl.coalesce(f"{name} of parts", name)).otherwise(name).alias(name)
        for name in arguments
    ]
    return joined.with_columns(filled).select(calls.columns)


def _parts(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that were put together, each with the call that carries it out."""
    sources = (collectives.filter(pl.col("source") == source) for source in ("host", "op"))
    rows = next((rows for rows in sources if rows.height), collectives.clear())
    named = rows.with_columns(call_collectives(rows["name"]).alias("recorded"))
    starts = calls.drop_nulls("launch_ns").select("launch_ns", "launch_thread", "_row", "_together")
    ordered = starts.sort("launch_ns").rename({"launch_thread": "thread"})
    ended = named.drop_nulls("recorded").filter(~pl.col("recorded").is_in(TOGETHER)).sort("end_ns")
    before = ended.join_asof(
        ordered.select(pl.col("launch_ns").alias("_before"), "thread", pl.col("launch_ns").alias("_key")),
        left_on="end_ns",
        right_on="_key",
        by="thread",
        check_sortedness=False,
    )
    alone = before.filter((pl.col("_before") < pl.col("start_ns")).fill_null(value=True))
    carried = alone.join_asof(
        ordered,
        left_on="end_ns",
        right_on="launch_ns",
        by="thread",
        strategy="forward",
        check_sortedness=False,
    )
    return carried.filter("_together")


def _described(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the arguments of calls with the collective that each names, and whether that has own sizes."""
    by_name = call_collectives(collectives["name"])
    own_sizes = has_own_sizes(collectives["name"])
    names_alike = pl.col("source").is_in(["op", "gloo"])  # even and uneven exchanges
    is_said = ~names_alike | (by_name != EXCHANGE) | pl.col("in_split").is_not_null()
    return collectives.with_columns(
        by_name.alias("recorded"), own_sizes=pl.when(by_name.is_not_null() & is_said).then(own_sizes)
    )


def _renamed(described: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the rows of one source with its name in front of each argument."""
    place = ("start_ns", "correlation") if source == "kernel" else _PLACE
    of_source = pl.col("source") == source
    arguments = pl.col(*ARGUMENTS, "recorded", "own_sizes").filter(of_source).name.prefix(f"{source} ")
    return described.select(pl.col(place).filter(of_source), arguments)


_PLACE = ("start_ns", "end_ns", "correlation", "thread")


def _first_known(calls: pl.DataFrame, sources: tuple[str, ...]) -> pl.DataFrame:
    """Fold the arguments of several sources into one column each."""
    candidates = {
        name: [pl.col(f"{source} {name}") for source in sources if f"{source} {name}" in calls.columns]
        for name in (*ARGUMENTS, "recorded", "own_sizes")
    }
    for name in SPLITS:  # a list of tensors has sizes where torch passes no splits on
        split_lists = [pl.when(split.list.len() > 0).then(split) for split in candidates[name]]
        candidates[name] = [*split_lists, *candidates[name]]
    folded = [pl.coalesce(values).alias(name) for name, values in candidates.items()]
    merged = calls.with_columns(folded)
    return merged[[name for name in merged.columns if not name.startswith(tuple(f"{s} " for s in sources))]]


def with_host_arguments(ranges: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return `gloo:*` ranges, in order of start, with their arguments and whether an operator was found.

    gloo carries a reduce-scatter out as an all-reduce and names its range so; the operator that started
    the range knows better.
    """
    described = _described(collectives)
    calls = _with_own_arguments(ranges, described)
    paired_by = []
    for source in ("host", "op"):
        started = _started(calls, described, source)
        paired_by += [started["is_paired"]] if started["is_paired"].any() else []
        calls = calls.hstack([each for each in started.iter_columns() if each.name.startswith(f"{source} ")])
    is_paired = pl.all_horizontal(paired_by) if paired_by else pl.lit(value=False)
    return _first_known(calls.with_columns(is_paired.alias("is_paired")), ("host", "op", "gloo"))


def starters(
    ranges: pl.DataFrame, collectives: pl.DataFrame, sources: tuple[str, ...] = ("host", "op")
) -> pl.DataFrame:
    """Return start and thread of each `gloo:*` range, and of the operator that started it, where certain."""
    by_name = call_collectives(ranges["name"]).fill_null(OTHER).alias("by_name")
    described = _described(collectives)
    calls = _with_own_arguments(ranges.with_columns(by_name), described)
    columns = ["operator_ns", "operator_end_ns", "operator_thread"]
    started = [_started(calls, described, source) for source in sources]
    places = calls.select("start_ns", "thread")
    starts = [places.with_columns(each.select(columns)).filter(each["is_paired"]) for each in started]
    return pl.concat(starts).unique(["start_ns", "thread"], keep="first", maintain_order=True)


def _with_own_arguments(ranges: pl.DataFrame, described: pl.DataFrame) -> pl.DataFrame:
    """Return `gloo:*` ranges, in order of start, with their own arguments."""
    arguments = _renamed(described, "gloo").unique(["start_ns", "thread"], keep="first", maintain_order=True)
    ordered = ranges.sort("start_ns", maintain_order=True)
    columns = [name for name in arguments.columns if name not in ("end_ns", "correlation")]
    return ordered.join(arguments[columns], on=["start_ns", "thread"], how="left", maintain_order="left")


def _started(calls: pl.DataFrame, described: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return for each range the operator of `source` that started it, nulls if that is not certain."""
    rows = _renamed(described.filter(pl.col("recorded").is_not_null()), source)
    ordered = rows.sort("start_ns", maintain_order=True)
    # Operators that say the same are alike: it does not matter which of them started a range.
    alike = ordered.select(pl.exclude(*_PLACE, f"{source} sequence"))
    lists = pl.selectors.by_dtype(pl.List(pl.Int64))
    statements = alike.with_columns(lists.cast(pl.List(pl.String)).list.join(",")).hash_rows()
    operators = ordered.with_columns(
        collective=f"{source} recorded", elements=_elements(source, f"{source} recorded"), said=statements
    )
    ranges = calls.select("start_ns", collective="by_name", elements=_elements("gloo", "by_name"))
    number = pair_with_operators(ranges, operators).cast(pl.UInt32)
    arguments = [
        column[number]
        for column in operators.iter_columns()
        if column.name.startswith(f"{source} ") and column.null_count() < column.len()
    ]
    place = {"start_ns": "operator_ns", "end_ns": "operator_end_ns", "thread": "operator_thread"}
    rows_of = [operators[column][number].alias(name) for column, name in place.items()]
    return pl.DataFrame([*arguments, *rows_of, number.is_not_null().alias("is_paired")])


def _elements(source: str, collective: str) -> pl.Expr:
    """Return the elements that range and operator both record: those sent, of a receive those received."""
    received = pl.col(collective) == "recv"
    return pl.when(received).then(f"{source} out_elements").otherwise(f"{source} in_elements")


UNEVEN = "all_to_allv"

_REDUCED_TYPE = re.compile(
    r"_(?:Sum|Prod|Max|Min|MinMax|Avg|PreMulSum|SumPostDiv)_([a-z_0-9]+?)(?:_(?:RING|TREE|NVLS|COLLNET|PAT|LL)|\(|$)"
)
"""Element type in the name of a kernel that reduces; other kernels move bytes whatever the type."""

_REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def with_types(calls: pl.DataFrame) -> pl.DataFrame:
    """Fill in the element type from the kernel's name if no argument gives it."""
    by_name = map_distinct(
        calls["name"], lambda kernel: match[1] if (match := _REDUCED_TYPE.search(kernel)) else None
    )
    reduces = pl.col("collective").is_in(_REDUCING)
    return calls.with_columns(pl.coalesce("dtype", pl.when(reduces).then(by_name)).alias("dtype"))


def widths(types: pl.Series) -> pl.Series:
    """Return the bytes of one element of each type; null if the type is not known."""
    width_of: dict[str, float] = {}
    for name in types.unique().drop_nulls():
        with suppress(NotMeasurable):
            width_of[name] = dtypes.width_bytes(name)
    return types.replace_strict(width_of, default=None, return_dtype=pl.Float64)


def with_sizes(calls: pl.DataFrame) -> pl.DataFrame:
    """Add `sent_bytes`, `received_bytes`, the message `size_bytes`, and for all-to-alls two marks.

    `own_sizes` shows which definition of the message holds, `uneven` whether the members may leave at
    different times: parts that differ, or whose sizes the profiler cut (`...`). It is null if nothing
    says; the exchange is taken as even then.
    """
    width = widths(calls["dtype"])
    exchange = pl.col("collective") == "all_to_all"
    sides = (pl.col("in_elements") != pl.col("out_elements")).fill_null(value=False)
    is_by_member = pl.col("own_sizes").fill_null(value=False)
    own_sizes = exchange & (is_by_member | _splits_differ() | sides)
    cut = pl.col("in_split").is_null() | pl.col("out_split").is_null()
    has_unknown_splits = exchange & pl.col("own_sizes").is_null() & cut & ~sides
    sized = calls.with_columns(
        (pl.col("in_elements") * width).round().cast(pl.Int64).alias("sent_bytes"),
        (pl.col("out_elements") * width).round().cast(pl.Int64).alias("received_bytes"),
        own_sizes.alias("own_sizes"),
        pl.when(~has_unknown_splits)
        .then(exchange & (_splits_differ() | sides | (is_by_member & cut)))
        .alias("uneven"),
    )
    operand = _operand({*calls["collective"].unique()})
    if sized["own_sizes"].any():
        operand = pl.when(pl.col("own_sizes")).then(_exchanged(width)).otherwise(operand)
    message = operand.round().cast(pl.Int64)
    moved = {
        "sent_bytes": pl.col("sent_bytes"),
        "received_bytes": pl.col("received_bytes"),
        "size_bytes": message,
    }
    is_alone = (pl.col("group_size") == 1).fill_null(value=False)
    return sized.with_columns(
        pl.when(is_alone & size.is_not_null()).then(0).otherwise(size).alias(name)
        for name, size in moved.items()
    )


def _splits_differ() -> pl.Expr:
    """Whether the split sizes of a call differ among members."""
    differ = [pl.col(name).list.n_unique() > 1 for name in ("in_split", "out_split")]
    return pl.any_horizontal(d.fill_null(value=False) for d in differ)


def _operand(present: Container[str | None]) -> pl.Expr:
    """Return the message of every collective that is `present` but an uneven all-to-all, bytes."""
    sent, received, members = pl.col("sent_bytes"), pl.col("received_bytes"), pl.col("group_size")
    either = {
        "in": pl.coalesce(sent, received),
        "out": pl.coalesce(received, sent),
        "sum": pl.coalesce(sent + received, sent, received),
    }
    from_parts = {  # with one side alone, the whole is that side's part from, or to, every member
        "all_gather": pl.coalesce(received, sent * members),
        "reduce_scatter": pl.coalesce(sent, received * members),
        "gather": pl.max_horizontal(received, sent * members),
        "scatter": pl.max_horizontal(sent, received * members),
    }
    message = pl.lit(None, dtype=pl.Int64)
    for name, facts in collectives.collectives().items():
        if name not in present or name == UNEVEN or facts.size == "none":
            continue
        size = from_parts.get(name, either.get(facts.size, pl.max_horizontal(sent, received)))
        message = pl.when(pl.col("collective") == name).then(size).otherwise(message)
    return message


def _exchanged(width: pl.Series) -> pl.Expr:
    """Return the larger of what an uneven all-to-all sends to and receives from other ranks, bytes.

    torch records splits as it got them, in rows of the first dimension; the recorded
    number of elements over the sum of the rows gives elements per row. Who has no row sends nothing.
    """
    sides = []
    for split, elements in (("in_split", "in_elements"), ("out_split", "out_elements")):
        own_rows = pl.col(split).list.get(pl.col("own_position"), null_on_oob=True)
        total = pl.col(split).list.sum()
        sides.append((pl.col(elements) * (1 - own_rows / total) * width).fill_nan(0))
    return pl.max_horizontal(*sides)
