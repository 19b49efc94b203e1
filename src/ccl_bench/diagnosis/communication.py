"""Communication of a run, and the run with other times of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.lazy_imports import pl
from ccl_bench.whatif.meetings import MESSAGES
from ccl_bench.whatif.run_graph import OWN, VALUES

if TYPE_CHECKING:
    from ccl_bench.diagnosis.gains import Gains, Mask, Times


def moves(gains: Gains) -> Mask:
    """Return which operations are collectives that ranks meet in, on the device or in a library."""
    return gains.where(
        (pl.col("place") != "host")
        & (pl.col("kind") == "communication")
        & ~pl.col("collective").is_in([*MESSAGES, "barrier"])
    )


def without_transfer(gains: Gains, mask: Mask) -> Times:
    """Return the variant in which some calls end when their last rank has come."""
    return with_transfer(gains, mask, np.zeros(int(mask.sum())))


def with_transfer(gains: Gains, mask: Mask, took: Times) -> Times:
    """Return the variant in which some calls take other times once their last rank has come, ns."""
    values = gains.graph.values.copy()
    values[mask.nonzero()[0] * VALUES + OWN] = took
    return values


def of_rows(gains: Gains, rows: pl.Series) -> Mask:
    """Return the operations of some rows."""
    found = np.zeros(len(gains.operations), dtype=np.bool_)
    found[rows.to_numpy()] = True
    return found


def transfers(gains: Gains, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives with a known size in steps, with `took` ns since their last rank came."""
    met = pl.Series(gains.graph.meets >= 0)
    columns = ("row", "trace", "rank", "step", "collective", "dimension", "size", "size_bytes")
    groups = calls.select("trace", "call", "group").unique(["trace", "call"])
    return (
        gains.operations.select(*columns, "call", took=pl.Series(gains.graph.values[OWN:-1:VALUES]))
        .filter(pl.Series(moves(gains)) & met)
        .with_columns(pl.col("collective").cast(pl.String))
        .join(groups, on=["trace", "call"], how="left", maintain_order="left")
        .drop_nulls(["size_bytes", "step", "dimension"])
    )
