"""Numbers and times as files hold them, to columns; what is none becomes null."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.trace.values import LATEST_NS

if TYPE_CHECKING:
    from collections.abc import Sequence


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
