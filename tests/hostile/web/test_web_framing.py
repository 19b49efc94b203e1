"""Bytes in which a proxy and the server could see different requests: refused, and never a second request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from raw_http import exchanged, statuses

if TYPE_CHECKING:
    from publishing_server import Leaderboard

_SECOND = b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
_POST = b"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_GET = b"GET /api/v1/health HTTP/1.1\r\n"
_LAST = _GET + b"Host: x\r\nConnection: close\r\n\r\n"

AMBIGUOUS = {
    "a length and chunks": _POST + b"Content-Length: 4\r\n" + _CHUNKED + b"\r\n0\r\n\r\n" + _SECOND,
    "chunks and a length": _POST + _CHUNKED + b"Content-Length: 500\r\n\r\n0\r\n\r\n" + _SECOND,
    "two lengths": _POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + _SECOND,
    "a list of lengths": _POST + b"Content-Length: 0, 44\r\n\r\n" + _SECOND,
    "a length with a sign": _POST + b"Content-Length: +0\r\n\r\n" + _SECOND,
    "a length in hexadecimal": _POST + b"Content-Length: 0x0\r\n\r\n" + _SECOND,
    "chunks twice": _POST + _CHUNKED + _CHUNKED + b"\r\n0\r\n\r\n" + _SECOND,
    "chunks that are not the last coding": _POST
    + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"
    + _SECOND,
    "another coding": _POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + _SECOND,
    "a coding after a tab": _POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + _SECOND,
    "chunks in HTTP/1.0": _POST.replace(b"1.1", b"1.0") + _CHUNKED + b"\r\n0\r\n\r\n" + _SECOND,
    "a space before the colon": _POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + _SECOND,
    "a folded line": _POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + _SECOND,
    "a line folded by a tab": _GET + b"Host: x\r\nX-A: b\r\n\tContent-Length: 4\r\n\r\n" + _SECOND,
    "lines that end with LF": _GET.replace(b"\r\n", b"\n") + b"Host: x\n\n" + _SECOND,
    "one line that ends with LF": _GET + b"Host: x\r\nX-A: b\nX-C: d\r\n\r\n" + _SECOND,
    "headers that end with LF": _GET + b"Host: x\r\n\n" + _SECOND,
    "a CR in a header": _GET + b"Host: x\r\nX-A: b\rX-C: d\r\n\r\n" + _SECOND,
    "a NUL in a header": _GET + b"Host: x\r\nX-A: b\0c\r\n\r\n" + _SECOND,
    "a size of a chunk that is none": _POST + _CHUNKED + b"\r\nZZ\r\n\r\n" + _SECOND,
    "a size with a sign": _POST + _CHUNKED + b"\r\n-1\r\n\r\n" + _SECOND,
    "a size of a chunk without end": _POST + _CHUNKED + b"\r\n" + b"0" * 30 + b"\r\n\r\n" + _SECOND,
    "a chunk longer than it says": _POST + _CHUNKED + b"\r\n1\r\nxx\r\n0\r\n\r\n" + _SECOND,
    "a size that ends with LF": _POST + _CHUNKED + b"\r\n0\n\n" + _SECOND,
    "no host": _GET + b"\r\n" + _SECOND,
    "two hosts": _GET + b"Host: x\r\nHost: y\r\n\r\n" + _SECOND,
    "no version": b"GET /api/v1/health\r\nHost: x\r\n\r\n" + _SECOND,
    "two spaces": b"GET  /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n" + _SECOND,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SECOND,
    "a header without end": _GET + b"Host: x\r\nX-A: " + b"b" * 200_000 + b"\r\n\r\n" + _SECOND,
    "headers without end": _GET + b"Host: x\r\n" + b"X-A: b\r\n" * 30_000 + b"\r\n" + _SECOND,
}


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_request_is_refused_and_what_follows_it_is_no_request(
    server: Leaderboard, sent: bytes
) -> None:
    found = statuses(exchanged(server, sent))
    assert len(found) <= 1
    assert all(status >= 400 for status in found)


def test_what_is_ambiguous_is_refused_in_the_second_request_of_a_connection_too(server: Leaderboard) -> None:
    for ambiguous in ("lines that end with LF", "a folded line", "chunks and a length"):
        found = statuses(exchanged(server, _SECOND + AMBIGUOUS[ambiguous]))
        assert found == [200, 400], ambiguous


def test_sound_requests_of_one_connection_are_all_answered(server: Leaderboard) -> None:
    chunked = _POST + _CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n"
    length = _POST + b"Content-Length: 2\r\n\r\n{}"
    assert statuses(exchanged(server, _SECOND + chunked + length + _LAST)) == [200, 401, 401, 200]


def test_an_upgrade_to_another_protocol_is_not_made(server: Leaderboard) -> None:
    for wanted in (b"websocket", b"h2c"):
        asked = (
            _GET + b"Host: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: " + wanted + b"\r\n"
        )
        asked += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        assert statuses(exchanged(server, asked)) == [200]
