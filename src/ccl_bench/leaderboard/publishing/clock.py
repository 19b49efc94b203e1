"""The time as the database keeps it: ISO 8601 in UTC with microseconds, which sorts as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def now(later_s: float = 0.0) -> str:
    """Return the time, or what it will be some seconds later."""
    moment = datetime.now(UTC) + timedelta(seconds=later_s)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"


def seconds_to_next_hour() -> int:
    """Return the seconds until the hour is over, at least 1."""
    moment = datetime.now(UTC)
    return max(1, 3600 - moment.minute * 60 - moment.second)
