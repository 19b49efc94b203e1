"""Bytes to a server and from it, without a library that would mend or refuse them."""

from __future__ import annotations

import contextlib
import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from publishing_server import Leaderboard

PATIENCE_S = 300.0


def connected(server: Leaderboard, *, receive_bytes: int = 0) -> socket.socket:
    """Return a connection to a server, whose receive buffer may be small."""
    there = urlsplit(server.address)
    line = socket.socket()
    if receive_bytes:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    line.settimeout(PATIENCE_S)
    line.connect((there.hostname, there.port))
    return line


def exchanged(server: Leaderboard, sent: bytes) -> bytes:
    """Return all that a server answers to some bytes until it closes the connection."""
    with connected(server) as line:
        line.sendall(sent)
        return rest(line)


def rest(line: socket.socket) -> bytes:
    """Return all that arrives until the connection is closed."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while block := line.recv(1 << 16):
            found += block
    return bytes(found)


def statuses(answers: bytes) -> list[int]:
    """Return the status of each answer in what a server sent."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answers)]
