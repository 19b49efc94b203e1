"""Bytes in which a proxy and the server could see different requests: refused, and never a second request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ambiguous_requests import AMBIGUOUS, CHUNKED, GET, LAST, POST, SECOND
from raw_http import exchanged, statuses

if TYPE_CHECKING:
    from publishing_server import Leaderboard


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_request_is_refused_and_what_follows_it_is_no_request(
    server: Leaderboard, sent: bytes
) -> None:
    found = statuses(exchanged(server, sent))
    assert len(found) <= 1
    assert all(status >= 400 for status in found)


def test_what_is_ambiguous_is_refused_in_the_second_request_of_a_connection_too(server: Leaderboard) -> None:
    for ambiguous in ("lines that end with LF", "a folded line", "chunks and a length"):
        found = statuses(exchanged(server, SECOND + AMBIGUOUS[ambiguous]))
        assert found == [200, 400], ambiguous


def test_sound_requests_of_one_connection_are_all_answered(server: Leaderboard) -> None:
    chunked = POST + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n"
    length = POST + b"Content-Length: 2\r\n\r\n{}"
    assert statuses(exchanged(server, SECOND + chunked + length + LAST)) == [200, 401, 401, 200]


def test_an_upgrade_to_another_protocol_is_not_made(server: Leaderboard) -> None:
    for wanted in (b"websocket", b"h2c"):
        asked = GET + b"Host: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: " + wanted + b"\r\n"
        asked += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        assert statuses(exchanged(server, asked)) == [200]
