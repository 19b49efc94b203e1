"""Bytes of a communication call, counted as nccl-tests counts them.

Which operand is the message is data of the catalogue: the sum's buffer of an all-reduce,
the gathered side of an all-gather, the scattered side of a reduce-scatter. An uneven all-to-all
counts the larger of what goes to and comes from others. A group of one moves nothing. A call
without recorded size stays unattributed: null, never zero.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import collectives, dtypes

if TYPE_CHECKING:
    from collections.abc import Container

UNEVEN = "all_to_allv"

_REDUCED_TYPE = re.compile(
    r"_(?:Sum|Prod|Max|Min|MinMax|Avg|PreMulSum|SumPostDiv)_([a-z_0-9]+?)(?:_(?:RING|TREE|NVLS|COLLNET|PAT|LL)|\(|$)"
)
"""Element type in the name of a kernel that reduces; other kernels move bytes whatever the type."""

_REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def _width(dtype: str) -> float | None:
    try:
        return dtypes.width_bytes(dtype)
    except NotMeasurable:
        return None


def _type_in(kernel: str) -> str | None:
    match = _REDUCED_TYPE.search(kernel)
    return match[1] if match else None


def with_types(calls: pl.DataFrame) -> pl.DataFrame:
    """Fill in the element type from the kernel's name where no argument gives it."""
    names = calls["name"].cast(pl.String)
    known = {name: _type_in(name) for name in names.unique().drop_nulls()}
    by_name = names.replace_strict(list(known), list(known.values()), default=None, return_dtype=pl.String)
    reduces = pl.col("collective").is_in(_REDUCING)
    return calls.with_columns(pl.coalesce("dtype", pl.when(reduces).then(by_name)).alias("dtype"))


def widths(types: pl.Series) -> pl.Series:
    """Return the bytes of one element of each type; null where the type is not known."""
    known = {name: _width(name) for name in types.unique().drop_nulls()}
    return types.replace_strict(list(known), list(known.values()), default=None, return_dtype=pl.Float64)


def with_sizes(calls: pl.DataFrame) -> pl.DataFrame:
    """Add `sent_bytes`, `received_bytes`, the message `size_bytes`, and for all-to-alls two marks.

    `own_sizes` shows which definition of the message holds, `uneven` whether the members may leave at
    different times: parts that differ, or whose sizes the profiler cut (`...`). It is null where nothing
    says; the exchange is taken as even then.
    """
    width = widths(calls["dtype"])
    exchange = pl.col("collective") == "all_to_all"
    sides = (pl.col("in_elements") != pl.col("out_elements")).fill_null(value=False)
    named = pl.col("own_sizes").fill_null(value=False)
    own_sizes = exchange & (named | _splits_differ() | sides)
    cut = pl.col("in_split").is_null() | pl.col("out_split").is_null()
    silent = exchange & pl.col("own_sizes").is_null() & cut & ~sides
    sized = calls.with_columns(
        (pl.col("in_elements") * width).round().cast(pl.Int64).alias("sent_bytes"),
        (pl.col("out_elements") * width).round().cast(pl.Int64).alias("received_bytes"),
        own_sizes.alias("own_sizes"),
        pl.when(~silent).then(exchange & (_splits_differ() | sides | (named & cut))).alias("uneven"),
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
    alone = (pl.col("group_size") == 1).fill_null(value=False)
    return sized.with_columns(
        pl.when(alone & size.is_not_null()).then(0).otherwise(size).alias(name)
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
        own = pl.col(split).list.get(pl.col("own_position"), null_on_oob=True)
        total = pl.col(split).list.sum()
        sides.append((pl.col(elements) * (1 - own / total) * width).fill_nan(0))
    return pl.max_horizontal(*sides)
