"""Units that more than one module converts to."""

from __future__ import annotations

SECOND_NS = 1_000_000_000
"""Nanoseconds of a second."""

MILLISECOND_NS = 1_000_000
"""Nanoseconds of a millisecond."""

GIGA = 1e9
"""Bytes of a GB, and as many of anything else: 10^9, never 2^30."""
