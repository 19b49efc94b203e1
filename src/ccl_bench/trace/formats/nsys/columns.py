"""Values out of a database, where any column may hold anything, to typed columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value if isinstance(value, int) else None


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return None if value is None else str(value)


def _blob(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


_KINDS: dict[str, tuple[str, Callable[[object], object]]] = {
    "integer": ("Int64", _whole),
    "real": ("Float64", _real),
    "text": ("String", _text),
    "blob": ("Binary", _blob),
}
"""What a column is read as: its polars type, and what becomes of a value of another type."""


def column(name: str, kind: str, values: Sequence[object]) -> pl.Series:
    """Return values as a column; what is not of its kind becomes null, or text where that is asked for."""
    type_name, meaning = _KINDS[kind]
    dtype: pl.DataType = getattr(pl, type_name)()
    if kind in {"integer", "text"}:
        try:
            return pl.Series(name, values, dtype=dtype, strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
    return pl.Series(name, [meaning(value) for value in values], dtype=dtype)


def empty(kinds: dict[str, str]) -> pl.DataFrame:
    """Return a frame of these columns without rows."""
    return pl.DataFrame([column(name, kind, []) for name, kind in kinds.items()])
