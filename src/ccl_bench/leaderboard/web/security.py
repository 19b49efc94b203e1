"""Security headers of every answer, so that a browser never runs published content."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{}; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
POLICY = _POLICY.format("")
"""Content security policy of every page: scripts and styles of this server only, nothing inline."""
DRAWING_POLICY = _POLICY.format(" 'unsafe-inline'")
"""Policy of pages with charts, whose library writes style elements; scripts stay as strict."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
EMBEDDED = {"cross-origin-resource-policy": "cross-origin"}
"""Headers of pictures, which pages of others may show; they are public, and run nothing."""


class SecurityHeaders:
    """Adds the headers that an answer does not set itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                missing = {n.encode(): v.encode() for n, v in HEADERS.items() if n.encode() not in present}
                message["headers"] = [*message["headers"], *missing.items()]
            await send(message)

        await self.app(scope, receive, sending if scope["type"] == "http" else send)
