"""Which optimizer ranges are one update of all parameters, and so end a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.intervals import outermost
from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

OPTIMIZER_RANGE = "Optimizer.step#"


def update_ends(ranges: pl.DataFrame, backward: pl.Series, loads: pl.Series) -> pl.Series:
    """Return when each update of all parameters ends, in order.

    `ranges` are those of optimizers, `backward` the starts of backward operators, `loads` those of reads
    from a data loader. Optimizers without a backward pass between them are of one step, as are Muon and
    AdamW on parts of the parameters. Where each has a backward pass of its own, as in adversarial
    training, they take turns: then the last of each turn ends a step.
    """
    steps = outermost(ranges)
    passed = backward.sort().search_sorted(steps["start_ns"]).cast(pl.Int64)
    since = passed - passed.shift(1, fill_value=0)
    opens = (since > 0) if backward.len() else pl.Series([True]).new_from_index(0, steps.height)
    joined = steps.with_columns(since.alias("since"), update=opens.cum_sum())
    updates = joined.group_by("update", maintain_order=True).agg(
        pl.col("name"), pl.col("since").sum(), pl.col("start_ns").first(), pl.col("end_ns").last()
    )
    turn = _turn(updates, loads)
    return updates["end_ns"].gather_every(turn, turn - 1)


def _turn(updates: pl.DataFrame, loads: pl.Series) -> int:
    """Return how many updates make one step: all of them where they take no turns.

    Optimizers of different names take turns by name. Those of one name do where the backward passes before
    them take turns in size, unless data are read for each. What precedes the first one may lie before
    the recording, and proves nothing.
    """
    names = [tuple(found) for found in updates["name"].to_list()]
    by_name = _cycle(names)
    sizes = list(zip(names, updates["since"], strict=True))[1:]
    read = loads.sort().search_sorted(updates["start_ns"])
    reads_for_each = bool(loads.len()) and bool((read.diff().drop_nulls() > 0).all())
    by_size = by_name if by_name == 1 and reads_for_each else _cycle(sizes)
    return by_size or by_name or updates.height


def _cycle(keys: Sequence[Hashable]) -> int | None:
    """Return after how many keys they repeat, seen twice at least; None where they do not."""
    for length in range(1, len(keys) // 2 + 1):
        if keys[length:] == keys[:-length]:
            return length
    return None
