"""The trace formats that can be read; other packages add theirs by an entry point."""

from __future__ import annotations

from ccl_bench.base.registry import Registry
from ccl_bench.trace.format import (
    Format,
    Identity,
    InParts,
    Part,
    all_of,
    any_of,
    begins,
    holds,
    none_of,
    shows,
)

__all__ = [
    "FORMATS",
    "GROUP",
    "Format",
    "Identity",
    "InParts",
    "Part",
    "all_of",
    "any_of",
    "begins",
    "holds",
    "load",
    "none_of",
    "recognised",
    "register",
    "shows",
    "suffixes",
]

GROUP = "ccl_bench.formats"


FORMATS: Registry[Format] = Registry("trace format", GROUP, "ccl_bench.trace.formats")


def register(form: Format) -> Format:
    """Make a format known."""
    FORMATS.add(form.name, form)
    return form


def load() -> Registry[Format]:
    """Import every format of this package and of plug-ins, and return the registry."""
    return FORMATS.load()


def recognised(head: bytes) -> Format | None:
    """Return the format of a file that begins with `head`, or None."""
    return next((form for form in load() if form.recognises(head)), None)


def suffixes() -> tuple[str, ...]:
    """Return how the names of traces end, over all formats."""
    return tuple(dict.fromkeys(suffix for form in load() for suffix in form.suffixes))
