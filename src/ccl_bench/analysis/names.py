"""Matching of names, each distinct name once: patterns, and the collective behind a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import collectives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OTHER = collectives.OTHER_COMMUNICATION

GLOO = "gloo:"
"""How the names of ranges begin in which gloo communicates."""


def map_distinct(names: pl.Series, meaning: Callable[[str], str | None]) -> pl.Series:
    """Return the meaning of each name; each distinct name is looked up once."""
    distinct = _distinct(names)
    means = [None if name is None else meaning(name) for name in distinct.cast(pl.String).to_list()]
    if not any(means):
        return pl.Series(names.name, [None], dtype=pl.String).new_from_index(0, names.len())
    return names.replace_strict(distinct, pl.Series(means, dtype=pl.String), default=None)


def holds_for(names: pl.Series, condition: Callable[[str], bool]) -> pl.Series:
    """Return whether `condition` holds for each name; each distinct name is looked at once."""
    return all_holding(names, condition)[0]


def all_holding(names: pl.Series, *conditions: Callable[[str], bool]) -> list[pl.Series]:
    """Return for each condition whether it holds for each name; each distinct name is looked at once."""
    distinct = _distinct(names)
    texts = distinct.cast(pl.String).to_list()
    masks = ([name is not None and condition(name) for name in texts] for condition in conditions)
    return _are_among(names, [distinct.filter(pl.Series(mask, dtype=pl.Boolean)) for mask in masks])


def _distinct(names: pl.Series) -> pl.Series:
    """Return each name once, in any order. `Series.unique` takes twice as long for a small column."""
    return names if names.is_empty() else names.to_frame().unique().to_series()


def is_one_of(names: pl.Series, values: pl.Series) -> pl.Series:
    """Return whether each name, or number, is one of `values`, of the same type; no null is."""
    return _are_among(names, [values])[0]


def _are_among(names: pl.Series, choices: Sequence[pl.Series]) -> list[pl.Series]:
    """Return for each of `choices` whether each name is one of it; one query looks all of them up."""
    looked_up: dict[str, pl.Expr] = {}
    for place, values in enumerate(choices):
        if not values.is_empty():
            is_among = pl.col(names.name).is_in(pl.lit(values).implode())
            has_null = names.null_count() or values.null_count()
            looked_up[str(place)] = is_among.fill_null(value=False) if has_null else is_among
    masks = names.to_frame().select(**looked_up) if looked_up else pl.DataFrame()
    none = pl.Series([False]).new_from_index(0, names.len())
    return [masks[place] if place in looked_up else none for place in map(str, range(len(choices)))]


def matching(names: pl.Series, pattern: str) -> pl.Series:
    """Mark which names match a pattern; each distinct name is looked at once."""
    return all_matching(names, pattern)[0]


def all_matching(names: pl.Series, *patterns: str) -> list[pl.Series]:
    """Mark which names match, for each pattern; each distinct name is looked at once."""
    distinct = _distinct(names)
    if distinct.is_empty():
        return _are_among(names, [names for _ in patterns])
    text = pl.lit(distinct.cast(pl.String))
    masks = pl.select(text.str.contains(pattern).alias(str(place)) for place, pattern in enumerate(patterns))
    return _are_among(names, [distinct.filter(matches) for matches in masks.iter_columns()])


def recorded_collectives(names: pl.Series) -> pl.Series:
    """Return the collective behind each `Collective name` of a kernel; null if none was recorded."""
    return map_distinct(names, lambda name: collectives.canonical(name) or OTHER)


def kernel_collectives(kernels: pl.DataFrame) -> pl.Series:
    """Return the collective of each row of `kernels` by metadata and name; null for those that have none."""
    by_name = map_distinct(kernels["name"], collectives.of_kernel)
    return pl.select(pl.coalesce(recorded_collectives(kernels["collective"]), by_name)).to_series()


def has_own_sizes(names: pl.Series) -> pl.Series:
    """Return whether each `Collective name` says all-to-all with a size of its own for each member."""
    return holds_for(
        names,
        lambda name: (
            collectives.canonical(name) is not None and collectives.collective(name).name == "all_to_allv"
        ),
    )


def call_collectives(names: pl.Series) -> pl.Series:
    """Return the collective behind `Collective name`s, `gloo:*` ranges and `c10d::*` operators."""
    return map_distinct(names, lambda name: collectives.of_annotation(name) or collectives.canonical(name))
