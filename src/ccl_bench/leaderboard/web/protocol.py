"""The server's side of a connection: limits on number and slowness, and strict HTTP.

Uvicorn has options for none of it. `limit_concurrency` answers 503 after a whole request, and holds any
number of silent connections; `timeout_keep_alive` counts from an answer to the next byte, so nothing ends a
client that trickles its headers or body, or does not receive its answer. h11 reads a folded line, a bare LF,
and chunks beside a length. A proxy in front may guard all of this, but `serve` also works without one.
"""

from __future__ import annotations

import re
import resource
import socket
import struct
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MAX_CONNECTIONS = 1000
"""Largest number of connections; fewer if the process may not open twice as many files.

The other half is for the files and the database that requests need.
"""
PATIENCE_S = 20.0
"""Time that a client may spend without sending or receiving."""
MIN_BYTES_PER_S = 500
"""Lowest rate at which a client sends and receives; both values are the defaults of mod_reqtimeout."""
_CHECK_EVERY_S = 5.0
_RESET = struct.pack("ii", 1, 0)
"""`struct linger` of socket(7): do not wait for unsent data."""

_READ_DIFFERENTLY = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends without CR, or goes on in the next one: a proxy may see other headers than h11."""


class StrictConnection(h11.Connection):
    """Reads only requests that every proxy understands in the same way (RFC 9112: 2.2, 5.2, 6.1)."""

    def next_event(self) -> Any:
        """Return the next part of a request; raise RemoteProtocolError for an ambiguous one."""
        if self.their_state is h11.IDLE:
            head = self.trailing_data[0].partition(b"\r\n\r\n")[0]
            if _READ_DIFFERENTLY.search(head):
                raise h11.RemoteProtocolError("a line of the headers is folded, or does not end with CRLF")
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("the length of the body is stated in two ways")
            if event.http_version not in {b"1.0", b"1.1"}:
                raise h11.RemoteProtocolError("unsupported version of HTTP")
        return event


class BoundedProtocol(H11Protocol):
    """Closes connections beyond a limit, and those of slow clients.

    A client begins each request and each answer with a budget of `PATIENCE_S`; bytes that it sends or
    receives add time at `MIN_BYTES_PER_S`, up to `PATIENCE_S`. Time that the server takes does not count.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = StrictConnection(h11.SERVER)
        self._deadline = 0.0
        self._unsent = 0
        self._check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a new connection, or close it if there are too many."""
        super().connection_made(transport)
        allowed_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if len(self.connections) > min(MAX_CONNECTIONS, allowed_files // 2):
            self._cut_off()
            return
        self._begin_waiting()
        self._check = self.loop.call_later(_CHECK_EVERY_S, self._end_if_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._check:
            self._check.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive data from the client; data after the answer adds no time."""
        if self.conn.our_state is not h11.DONE:
            self._earn(len(data))
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of an answered one."""
        self._begin_waiting()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait until the client receives more of the answer."""
        self._begin_waiting()
        super().pause_writing()

    def _begin_waiting(self) -> None:
        self._deadline = self.loop.time() + PATIENCE_S

    def _earn(self, count: int) -> None:
        most = self.loop.time() + PATIENCE_S
        self._deadline = min(most, self._deadline + count / MIN_BYTES_PER_S)

    def _end_if_late(self) -> None:
        unsent, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        self._earn(max(0, unsent - self._unsent))
        is_sending = self.conn.their_state in {h11.IDLE, h11.SEND_BODY} and not self.flow.read_paused
        if not (is_sending or self.flow.write_paused or self.transport.is_closing()):
            self._begin_waiting()  # for the server, which has all the time that it needs
        if self._deadline <= self.loop.time():
            self._cut_off()
            return
        self._check = self.loop.call_later(_CHECK_EVERY_S, self._end_if_late)

    def _cut_off(self) -> None:
        """Close the connection at once: without a reset the kernel would hold unsent data."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()
