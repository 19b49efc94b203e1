"""How long operations would take if they took what the same operations take on other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.whatif.run_graph import GAP, OWN, VALUES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ccl_bench.whatif.run_graph import RunGraph

    Times = NDArray[np.float64]
    Mask = NDArray[np.bool_]

IDEALISATION = (
    "an operation takes the median of the same operation of all ranks at the same place in the step; what "
    "is left out takes that of the others, first of its pipeline stage"
)

_DIGITS = r"\d+"
_STAGE_PLACE = "stage_place"
_PLACES = {"place": ["key", "k", "step"], "step_place": ["key", "step"], "run_place": ["key"]}
"""What must be the same, the closest first."""


def comparable_values(graph: RunGraph) -> pl.DataFrame:
    """Return the values of operations that compare between ranks.

    One row a value: its number as `value`, `row`, `ns`, and a number for each set of places that compare: the
    same operation as the k-th of its kind in the step, in the step, and anywhere. Numbers in names do not
    count: `forward 1` compares with `forward 2`.
    """
    ops = graph.operations.select(
        "row", "trace", "rank", "step", "stage", "place", "kind", "chain", "name", "size_bytes"
    )
    plain = pl.coalesce(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String)).str.replace_all(
        _DIGITS, "#"
    )
    named = ops.with_columns(plain=plain.cast(pl.Categorical))
    before = pl.col("plain").shift(1).over("trace", "chain")
    on_host = pl.col("place") == "host"
    meets = pl.Series(graph.meets >= 0)
    own = named.with_columns(
        part=pl.lit(OWN),
        key=pl.struct(
            "place", "plain", "size_bytes", meets.alias("meets"), other=pl.lit(None, pl.Categorical)
        ),
    )
    gap = (
        named.with_columns(before=before)
        .filter(on_host)
        .with_columns(
            part=pl.lit(GAP),
            key=pl.struct("place", "plain", "size_bytes", pl.lit(value=False).alias("meets"), other="before"),
        )
    )
    columns = ("row", "trace", "rank", "step", "stage", "part", "key")
    every = pl.concat([own.select(columns), gap.select(columns)]).with_columns(
        key=pl.struct("part", "key").rank("dense")
    )
    numbered = every.with_columns(value=pl.col("row") * VALUES + pl.col("part").cast(pl.Int64)).sort("row")
    counted = numbered.with_columns(
        k=pl.int_range(pl.len()).over("trace", "step", "key"),
        ns=pl.Series(graph.values[numbered["value"].to_numpy()]),
    )
    places = {_STAGE_PLACE: ["key", "k", "step", "stage"], **_PLACES}
    return counted.select(
        "value", "row", "ns", *(pl.struct(same).hash().alias(name) for name, same in places.items())
    )


def ideal_values(values: pl.DataFrame, changed: Mask | None = None) -> pl.DataFrame:
    """Return `value` and `ideal` ns of the values of operations that change; of all where nothing is named.

    `changed` has one entry an operation. Those that change are not compared with each other.
    """
    wanted, others, places = values, values, [*_PLACES]
    if changed is not None:
        is_changed = pl.Series(changed[values["row"].to_numpy()])
        wanted, others = values.filter(is_changed), values.filter(~is_changed)
        places = [_STAGE_PLACE, *_PLACES]
    found = []
    for place in places:
        typical = (
            others.join(wanted.select(place).unique(), on=place, how="semi")
            .group_by(place)
            .agg(pl.col("ns").median().alias("ideal"))
        )
        found.append(wanted.join(typical, on=place).select("value", "ideal"))
        wanted = wanted.join(typical, on=place, how="anti")
        if wanted.is_empty():
            break
    return pl.concat([*found, wanted.select("value", ideal="ns")])
