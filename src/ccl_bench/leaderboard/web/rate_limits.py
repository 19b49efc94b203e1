"""Rate limits of requests, for each address and each token.

Each has a token bucket with the requests of one minute, which refills evenly. Each server process counts
only the requests that it answers itself.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.publishing.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

_MINUTE_S = 60.0
_MOST_KEPT = 100_000
"""Number of callers with buckets; the one that called longest ago is dropped first."""


@dataclass(slots=True)
class RateLimiter:
    """The buckets of some callers."""

    now: Callable[[], float] = time.monotonic
    """Seconds of a monotonic clock."""
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """Caller → remaining requests, and the time of that count."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, caller: str, per_minute: int) -> int:
        """Count one request of a caller and return 0, or the whole seconds until one is allowed."""
        with self._lock:
            now = self.now()
            left, then = self._buckets.pop(caller, (float(per_minute), now))
            left = min(per_minute, left + (now - then) * per_minute / _MINUTE_S)
            is_allowed = left >= 1
            self._buckets[caller] = (left - is_allowed, now)
            if len(self._buckets) > _MOST_KEPT:
                self._buckets.popitem(last=False)
        return 0 if is_allowed else math.ceil((1 - left) * _MINUTE_S / per_minute)


class AddressLimit:
    """Answers 429 if an address sends too many requests, before any other processing."""

    def __init__(self, app: ASGIApp, data: Path) -> None:
        self.app = app
        self._data = data
        self._limiter = RateLimiter()
        self._settings = Settings()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; if the settings cannot be read, the last valid ones apply."""
        with contextlib.suppress(InputError):
            self._settings = load_settings(self._data)
        wait = 0
        if scope["type"] == "http" and scope.get("client"):
            address = network_of(scope["client"][0])
            wait = self._limiter.take(address, self._settings.requests_per_minute)
        if not wait:
            await self.app(scope, receive, send)
            return
        refused = too_many("this address", self._settings.requests_per_minute, wait)
        content = {"detail": refused.message, "fix": refused.fix}
        await JSONResponse(content, refused.status, refused.headers)(scope, receive, send)


def network_of(address: str) -> str:
    """Return the key of a caller: an IPv4 address, or the /64 network of an IPv6 address.

    A proxy that listens for both writes IPv4 addresses in the form of IPv6, which share one network.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def too_many(caller: str, allowed: int, wait_s: int) -> RequestRefused:
    """Return the refusal of a caller that calls too often."""
    return RequestRefused(
        f"{caller} makes more than {allowed:,} requests a minute",
        fix=f"try again in {wait_s} s",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        headers={"retry-after": str(wait_s)},
    )
