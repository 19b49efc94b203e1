"""Findings: what was wrong with the data behind a number, never hidden and never fatal by itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about the data that a reader of the numbers must know."""

    code: str
    """Stable name, explained in the manual."""
    severity: str
    """`note`, `warning` or `error`."""
    message: str
    """What was found, in one sentence."""
    file: str = ""
    """The file it was found in, relative to the run."""
    rank: int | None = None
    """The rank it concerns, where it concerns one."""
    count: int = 1
    """How many events, ranks or calls it concerns."""
    touches: tuple[str, ...] = ()
    """Tables whose rows it concerns; empty for all of them."""


def way_out(code: str) -> str:
    """Return what to do about a finding; empty where it asks for nothing."""
    return _ways_out().get(code, "")


@cache
def _ways_out() -> dict[str, str]:
    import tomllib
    from importlib import resources

    return tomllib.loads(
        resources.files("ccl_bench.base").joinpath("ways_out.toml").read_text(encoding="utf-8")
    )
