"""The type of work a GPU kernel does, by its name."""

from __future__ import annotations

from functools import cache

from ccl_bench.catalog.collectives import FUSED, SEARCHED, is_fused, of_kernel, stem
from ccl_bench.catalog.data_files import NamePattern, load_data

OTHER = "other"
"""Type of a kernel whose name matches no known type."""


def types() -> list[str]:
    """Return the types there are."""
    return list(load_data("kernel_types")["types"])


@cache
def kernel_type(name: str) -> str:
    """Return the type of a kernel, a memcpy or a memset: one of `types()`."""
    if is_fused(name):
        return FUSED
    if of_kernel(name) is not None:
        return "communication"
    short = stem(name)
    for pattern, looks_at_stem, kind in _rules():
        if pattern.is_in(short if looks_at_stem else name[:SEARCHED]):
            return kind
    return OTHER


@cache
def _rules() -> list[tuple[NamePattern, bool, str]]:
    rows = load_data("kernel_types")["rule"]
    return [(NamePattern(row["match"]), row.get("in") == "stem", row["type"]) for row in rows]
