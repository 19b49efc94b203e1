"""Numbers of a serving result, each checked for being possible."""

from __future__ import annotations

import math

LONGEST_S = 10 * 86_400.0
"""Seconds above which a time is damage and not a slow server."""

MOST_TOKENS = 10**9
_LATEST_NS = 1 << 62


class Impossible(ValueError):  # noqa: N818 (what a value is, not what the program did)
    """A value that no request has, with its name."""


def seconds(value: object, name: str, unit_s: float = 1.0) -> float | None:
    """Return a time in seconds; `unit_s` is the length of the unit it is recorded in."""
    found = _number(value, name)
    if found is None:
        return None
    scaled = in_seconds(found, unit_s)
    if not 0 <= scaled <= LONGEST_S:
        raise Impossible(f"{name} is {found:g}")
    return scaled


def in_seconds(value: float, unit_s: float) -> float:
    """Return a time in seconds; dividing by 1000 keeps a digit that multiplying with 0.001 loses."""
    return value / round(1 / unit_s) if unit_s < 1 else value * unit_s


def tokens(value: object, name: str) -> int | None:
    """Return a number of tokens."""
    found = _number(value, name)
    if found is None:
        return None
    if not 0 <= found <= MOST_TOKENS or found != int(found):
        raise Impossible(f"{name} is {found:g}")
    return int(found)


def instant_ns(value: object, name: str) -> int | None:
    """Return a point in time, ns."""
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < _LATEST_NS:
        raise Impossible(f"{name} is no time in nanoseconds")
    return value


def text(value: object) -> str:
    """Return a text that can be kept, or an empty one where there is none."""
    if value is None:
        return ""
    return str(value)[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


_LONGEST_TEXT = 500


def finite(value: object) -> float | None:
    """Return a number that is one, or None."""
    try:
        found = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Impossible(f"{name} is no number")
    try:
        found = float(value)
    except OverflowError as error:
        raise Impossible(f"{name} is too large") from error
    if not math.isfinite(found):
        raise Impossible(f"{name} is {found}")
    return found
