"""Units that more than one module converts to."""

from __future__ import annotations

SECOND_NS = 1_000_000_000
"""Nanoseconds of a second."""

MILLISECOND_NS = 1_000_000
"""Nanoseconds of a millisecond."""

ROUNDING_NS = 2_000
"""Time by which a recorded end may be off: old profilers round start and duration to whole microseconds."""

GIGA = 1e9
"""Bytes of a GB, and as many of anything else: 10^9, never 2^30."""

FIRST_WALL_CLOCK_NS = 946_684_800 * SECOND_NS
"""The year 2000: earlier times are not those of a wall clock; they may count from the start of a host."""
