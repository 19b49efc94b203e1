"""Numbers and times as files hold them, to columns; what is none becomes null."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST = 2**63

LATEST_NS = 2**61
"""Times and durations beyond this (73 years) are no times: sums of a few of them would not fit 64 bits."""


_SURE_DIGITS = 19
"""A whole number of fewer digits fits a column."""


def number(value: object) -> float | int | None:
    """Return `value` as a number that fits a column, or None where it is not one."""
    try:
        exact = Decimal(value) if isinstance(value, int | float | str | Decimal) else None
    except InvalidOperation:
        return None
    if exact is None or not exact.is_finite() or abs(exact) >= LARGEST:
        return None
    return int(exact) if exact == int(exact) else float(exact)


def whole(value: object) -> int | None:
    """Return `value` as a whole number that fits a column, or None where it is not one."""
    if type(value) is int and -LARGEST < value < LARGEST:  # nearly always, and Decimal is slow
        return value
    if type(value) is str and value.isdecimal() and len(value) < _SURE_DIGITS:
        return int(value)
    found = number(value)
    return found if isinstance(found, int) else None


def integers(values: Sequence[object]) -> pl.Series:
    """Return a column of whole numbers; what is not one becomes null."""
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([whole(value) for value in values], dtype=pl.Int64)


def decimals(values: Sequence[object]) -> pl.Series:
    """Return a column of real numbers; what is not one becomes null."""
    try:
        return pl.Series(values, dtype=pl.Float64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([number(value) for value in values], dtype=pl.Float64, strict=False)


def column_of(values: Sequence[Any], kind: pl.DataType) -> pl.Series:
    """Return a column of a type; lists, which are slow to convert and mostly alike, one of each."""
    if not isinstance(kind, pl.List):
        return pl.Series(values, dtype=kind)
    distinct = {tuple(value) for value in values if value is not None}
    places = {value: place for place, value in enumerate(distinct)}
    rows = [None if value is None else places[tuple(value)] for value in values]
    return pl.Series([list(value) for value in places], dtype=kind)[pl.Series(rows, dtype=pl.UInt32)]


def microseconds(values: Sequence[object]) -> pl.Series:
    """Return times as they were decoded: decimal microseconds in doubles, or exact nanoseconds.

    `absolute` tells the two apart by their type.
    """
    first = next((value for value in values if value is not None), None)
    if not isinstance(first, Decimal):
        try:
            return pl.Series(values, dtype=pl.Float64, strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
    return pl.Series([_nanoseconds(value) for value in values], dtype=pl.Int64)


def _exactly(name: str) -> pl.Expr:
    """Return a column of decimal microseconds as whole nanoseconds, without losing a digit.

    A double holds the microseconds exactly enough below 2**43 (Kineto's `baseTimeNanoseconds`
    keeps them there) and whole microseconds up to 2**53. Splitting off the whole part before
    scaling keeps both exact. Anything finer was decoded as `Decimal`.
    """
    times = pl.col(name)
    micro = pl.when(times.abs() < LATEST_NS / 1000).then(times)
    whole = micro.floor()
    fraction = ((micro - whole) * 1000).round()
    return (whole.cast(pl.Int64) * 1000 + fraction.cast(pl.Int64)).alias(name)


def absolute(rows: pl.DataFrame, base_ns: int) -> pl.DataFrame:
    """Return rows with `ts` and `dur`, as `microseconds` makes them, as rows with `start_ns` and `end_ns`."""
    if decimal := [name for name in ("ts", "dur") if rows[name].dtype == pl.Float64]:
        rows = rows.with_columns(*map(_exactly, decimal))
    columns = rows.to_dict()
    start, duration = columns.pop("ts") + base_ns, columns.pop("dur")
    end = (start + duration).alias("end_ns")
    return pl.DataFrame([*columns.values(), start.alias("start_ns"), end])


def _nanoseconds(value: object) -> int | None:
    try:
        exact = (value if isinstance(value, Decimal) else Decimal(str(value))).scaleb(3)
    except (ArithmeticError, ValueError):
        return None
    return int(exact.to_integral_value()) if exact.is_finite() and abs(exact) < LATEST_NS else None
