"""Which rows are communication, and which collective: metadata first, name second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.catalog import collectives
from ccl_bench.frames import pl

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER = collectives.OTHER_COMMUNICATION

GLOO = "gloo:"
"""How the names of ranges begin in which gloo communicates."""


def _mapped(names: pl.Series, meaning: Callable[[str], str | None]) -> pl.Series:
    """Return what each name means; each distinct name is looked at once."""
    text = names.cast(pl.String)
    known = {name: meaning(name) for name in text.unique().drop_nulls()}
    return text.replace_strict(list(known), list(known.values()), default=None, return_dtype=pl.String)


def kernel_collectives(kernels: pl.DataFrame) -> pl.Series:
    """Return the collective of each row of `kernels`; null for those that are no communication."""
    recorded = _mapped(kernels["collective"], lambda name: collectives.canonical(name) or OTHER)
    by_name = _mapped(kernels["name"], collectives.of_kernel)
    return pl.select(pl.coalesce(recorded, by_name)).to_series()


def has_own_sizes(names: pl.Series) -> pl.Series:
    """Return whether each `Collective name` says all-to-all with a size of its own for each member."""
    return _mapped(names, lambda name: "yes" if _is_uneven(name) else None).is_not_null()


def _is_uneven(name: str) -> bool:
    return collectives.canonical(name) is not None and collectives.collective(name).name == "all_to_allv"


def call_collectives(names: pl.Series) -> pl.Series:
    """Return the collective behind `Collective name`s, `gloo:*` ranges and `c10d::*` operators."""
    return _mapped(names, lambda name: collectives.of_annotation(name) or collectives.canonical(name))
