"""Single values of a snapshot, which may be anything, as the types that tables hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST_TEXT = 1000
"""Characters of a name that are kept; one long text may stand in for very many names."""

_LARGEST = 1 << 63
_MICROSECOND_NS = 1000


def whole(value: object) -> int | None:
    """Return a value that is a whole number of 64 bits, else None."""
    return value if type(value) is int and -_LARGEST <= value < _LARGEST else None


def amount(value: object) -> int | None:
    """Return a value that is a number of bytes or an address, else None."""
    number = whole(value)
    return number if number is not None and number >= 0 else None


def time_ns(value: object) -> int | None:
    """Return microseconds as nanoseconds; None where there are none."""
    return whole(value * _MICROSECOND_NS) if type(value) is int and value > 0 else None


def text(value: object) -> str | None:
    """Return a text that says something, cut to a length that can be kept, else None."""
    return value[:LONGEST_TEXT] if isinstance(value, str) and value not in {"", "N/A"} else None


def flag(value: object) -> bool | None:
    """Return a value that is yes or no, else None."""
    return value if isinstance(value, bool) else None


def mappings(value: object) -> list[dict[str, object]]:
    """Return the dictionaries in a list; none where it is no list."""
    return [item for item in value if type(item) is dict] if isinstance(value, list | tuple) else []


def length(value: object) -> int:
    """Return how many items a list has; none where it is no list."""
    return len(value) if isinstance(value, list | tuple) else 0


def column(
    rows: Sequence[dict[str, object]], key: str, meaning: Callable[[object], object], dtype: type[pl.DataType]
) -> pl.Series:
    """Return what rows hold under `key` as a column."""
    return pl.Series(key, [meaning(row.get(key)) for row in rows], dtype=dtype)
