"""Which operator started each `gloo:*` range: by kind, size and time, and only where that is certain.

An operator hands its call to a thread of its process group and the range begins there, later and, where
groups communicate at once, in another order. What the range says of itself must fit the operator: the kind
of collective, as gloo carries it out, and the elements sent. Among operators that fit alike, ranges begin
in the order of the operators; while operators that say different things of their calls are under way
at once, nobody knows which range is whose, and those ranges stay unpaired.
"""

from __future__ import annotations

from ccl_bench.base.lazy_polars import pl
from ccl_bench.catalog.collectives import carried_out_by_gloo

_FIT = ["kind", "elements"]
"""What an operator and its range must have in common."""


def paired(ranges: pl.DataFrame, operators: pl.DataFrame) -> pl.Series:
    """Return for each range the number of the operator that started it, null where that is not certain.

    Both have `start_ns`, `collective` and `elements`, operators also `said`: the same for two of which it
    does not matter who started which.
    """
    starts = _fitting(ranges, operators)
    events = _under_way(starts)
    spell = pl.col("open").eq(0).shift(1, fill_value=False).cum_sum().over(_FIT)
    events = events.with_columns(spell.alias("spell"))
    mine = [*_FIT, "spell"]
    certain = (pl.col("said").drop_nulls().n_unique() == 1) & (pl.col("open").last() == 0)
    events = events.with_columns(
        certain.over(mine).alias("certain"),
        pl.int_range(pl.len(), dtype=pl.Int64).over([*_FIT, "is_range"]).alias("turn"),
    ).filter("certain")
    begun = events.filter("is_range").select(*_FIT, "turn", "number")
    started = events.filter(~pl.col("is_range")).select(*_FIT, "turn", operator="number")
    found = begun.join(started, on=[*_FIT, "turn"], how="left", nulls_equal=True)
    numbers = pl.DataFrame({"number": pl.int_range(ranges.height, dtype=pl.Int64, eager=True)})
    return numbers.join(found, on="number", how="left", maintain_order="left")["operator"]


def _fitting(ranges: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return the starts of operators and ranges in order of time, with what each must have in common.

    Where a trace has no sizes of the one or of the other, kinds alone must do.
    """
    carried_out = carried_out_by_gloo()
    kind = pl.col("collective").replace(carried_out) if carried_out else pl.col("collective")
    number = pl.int_range(pl.len(), dtype=pl.Int64).alias("number")
    common = ("start_ns", kind.alias("kind"), "elements", number)
    begun = ranges.select(*common, pl.lit(None, dtype=pl.UInt64).alias("said"), is_range=pl.lit(value=True))
    started = operators.select(*common, "said", is_range=pl.lit(value=False)).drop_nulls("kind")
    together = pl.concat([started, begun]).sort("start_ns", "is_range", maintain_order=True)
    has_sizes = pl.col("elements").is_not_null().any().over("kind", "is_range").all().over("kind")
    return together.with_columns(pl.when(has_sizes).then("elements"))


def _under_way(starts: pl.DataFrame) -> pl.DataFrame:
    """Return starts with the operators whose range has not begun as `open`, without ranges of none.

    A range that begins while no fitting operator waits for one was started before the recording.
    """
    change = pl.when("is_range").then(-1).otherwise(1)
    balance = change.cum_sum().over(_FIT)
    lowest = pl.min_horizontal(balance.cum_min().over(_FIT), 0)
    known = starts.with_columns(balance.alias("balance"), lowest.alias("lowest"))
    fell = pl.col("lowest") < pl.col("lowest").shift(1, fill_value=0).over(_FIT)
    return known.filter(~fell).select(
        pl.exclude("balance", "lowest"), (pl.col("balance") - pl.col("lowest")).alias("open")
    )
