"""The calls of Flight Recorder dumps with what decides whether ranks agree, and whether a call is over."""

from __future__ import annotations

from ccl_bench.base.lazy_imports import pl

_INPUT_ALONE = ("reduce", "_reduce_oop", "gather", "reduce_scatter", "reduce_scatter_v")
"""Operations whose outputs differ between ranks by design."""
_OUTPUT_ALONE = ("broadcast", "_broadcast_oop", "scatter", "all_gather", "all_gather_v")
"""Operations whose inputs differ between ranks by design."""
_NEITHER = "all_?to_?all"
"""Operations of which every pair of ranks has a size of its own."""

COALESCED = "coalesced"


def prepared(calls: pl.DataFrame, of_rank: pl.DataFrame) -> pl.DataFrame:
    """Return `recorded_calls` with `number` of the group, `signature`, `is_done` and `is_pending`.

    Sizes are compared as numbers of elements: communication libraries see no shapes. A call is done when it
    was seen to have ended; a call that was only retired may have failed. What is coalesced is done with the
    call that ends it.
    """
    alone = [pl.col("operation").is_in(names) for names in (_OUTPUT_ALONE, _INPUT_ALONE)]
    neither = pl.col("operation").str.contains(_NEITHER)
    sides = [
        pl.when(neither).then(pl.lit("")).when(left_out).then(pl.lit("")).otherwise(_sizes(side))
        for side, left_out in zip(("in", "out"), alone, strict=True)
    ]
    types = [
        pl.when(left_out)
        .then(pl.lit(""))
        .otherwise(pl.col(f"{side}_dtypes").list.unique().list.sort().list.join(","))
        for side, left_out in zip(("in", "out"), alone, strict=True)
    ]
    ended = pl.col("completed_ns").is_not_null() | (pl.col("state") == "completed")
    together = ["rank", "group", "is_p2p", pl.when("is_p2p").then("p2p_sequence").otherwise("sequence")]
    closed = (ended & (pl.col("operation") == COALESCED)).any().over(together)
    return (
        calls.join(of_rank, on=["rank", "group"], how="left", maintain_order="left")
        .with_columns(
            pl.concat_str("operation", *sides, *types, separator=" ").alias("signature"),
            (ended | closed).alias("is_done"),
        )
        .with_columns((~pl.col("is_done") & ~pl.col("is_retired")).alias("is_pending"))
    )


def _sizes(side: str) -> pl.Expr:
    """Return the elements of each tensor of one side, as a text."""
    product = pl.element().list.eval(pl.element().product()).list.first().fill_null(1)
    return pl.col(f"{side}_shapes").list.eval(product).cast(pl.List(pl.String)).list.join(",")
