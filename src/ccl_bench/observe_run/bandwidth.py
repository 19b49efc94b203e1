"""Bus bandwidth against message size: calls of about one size together, as quantiles."""

from __future__ import annotations

from ccl_bench.base.lazy_polars import pl
from ccl_bench.result.observation import MessageSize

_MOST = 300
"""Sizes that are told apart before neighbours are drawn together."""

_KEYS = ("collective", "dimension", "spans_nodes", "basis")
_REACH = {True: "between nodes", False: "inside a node", None: "unknown"}


def bus_bandwidth(transfers: pl.DataFrame) -> list[MessageSize]:
    """Return the bandwidth of each kind of call at each size.

    Where there are too many sizes, those between two powers of two count as one.
    """
    known = transfers.drop_nulls("bus_factor").with_columns(
        (pl.col("bus_factor") * pl.col("size_bytes") / pl.col("time_ns")).alias("bus")
    )
    exact = known.with_columns(pl.col("size_bytes").alias("about"))
    if exact.select(*_KEYS, "about").n_unique() > _MOST:
        power = pl.col("size_bytes").log(2).floor().cast(pl.Int64)
        exact = known.with_columns(power.alias("about"))
    found = (
        exact.group_by(*_KEYS, "about")
        .agg(
            pl.col("size_bytes").min().alias("min_bytes"),
            pl.col("size_bytes").max().alias("max_bytes"),
            pl.len().alias("calls"),
            *(pl.col("bus").quantile(share, "linear").alias(f"q{share}") for share in (0.1, 0.5, 0.9)),
        )
        .sort(*_KEYS, "about", nulls_last=True)
        .drop("about")
    )
    return [
        MessageSize(collective, dimension or "unknown", _REACH[spans], *rest)
        for collective, dimension, spans, *rest in found.iter_rows()
    ]
