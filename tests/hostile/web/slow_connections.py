"""Clients that are slow, that are many, and that send or take without end: others are served meanwhile."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from leaderboard_bundles import Made, added
from publishing_server import CALLS, wait_for
from raw_http import PATIENCE_S, connected, rest, statuses

from ccl_bench.leaderboard.web.protocol import MAX_CONNECTIONS
from ccl_bench.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from publishing_server import Leaderboard

_GET = b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n"
_POST = b"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_UPLOAD = b"POST /api/v1/bundles HTTP/1.1\r\nHost: x\r\nContent-Type: application/gzip\r\n"
_WIDE = b"GET /static/vega.js HTTP/1.1\r\nHost: x\r\n\r\n"
_MIB = 1 << 20


def _answers(server: Leaderboard) -> bool:
    return CALLS.get(f"{server.address}/api/v1/health").status_code == 200


def _sockets(server: Leaderboard) -> int:
    """Return the number of sockets that the server has open."""
    found = 0
    for path in Path(f"/proc/{server.process}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += str(path.readlink()).startswith("socket:")
    return found


def _peak_bytes(server: Leaderboard) -> int:
    """Return the most memory that the server has had."""
    lines = Path(f"/proc/{server.process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _token(server: Leaderboard) -> bytes:
    return b"Authorization: Bearer " + server.token("mallory").encode() + b"\r\n"


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def _gone(line: socket.socket) -> bool:
    """Whether the server has ended a connection, which is not read from."""
    watched = select.poll()
    watched.register(line, select.POLLRDHUP)
    return bool(watched.poll(0))


def test_clients_that_trickle_are_cut_off_while_others_are_served(
    server: Leaderboard, opened: contextlib.ExitStack
) -> None:
    """A byte a second, of requests that would take hours."""
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    beginnings = {
        "silence": (b"", b""),
        "headers": (_GET + b"X-A: ", b"b"),
        "many headers": (_GET, b"X-A: b\r\n"),
        "a body": (_POST + b"Content-Length: 60000\r\n\r\n", b" "),
        "a body in chunks": (_POST + chunked, b"1\r\n \r\n"),
        "an archive": (_UPLOAD + _token(server) + b"Content-Length: 60000\r\n\r\n", b"x"),
        "an archive in chunks": (_UPLOAD + _token(server) + chunked, b"1\r\nx\r\n"),
        "a second request": (_GET + b"\r\n" + _GET + b"X-A: ", b"b"),
        "a body after the answer": (_GET + b"Content-Length: 60000000\r\n\r\n", b"x" * 2000),
    }
    lines = {}
    for name, (beginning, _) in beginnings.items():
        lines[name] = opened.enter_context(connected(server))
        lines[name].sendall(beginning)
    until = time.monotonic() + PATIENCE_S
    left = dict(lines)
    while left:
        assert time.monotonic() < until, f"never cut off: {list(left)}"
        assert _answers(server)
        for name, line in list(left.items()):
            if _gone(line):
                del left[name]
                continue
            with contextlib.suppress(OSError):
                line.sendall(beginnings[name][1])
        time.sleep(1)


def test_clients_that_take_no_answer_are_cut_off(server: Leaderboard, opened: contextlib.ExitStack) -> None:
    """They ask for megabytes, or for little again and again, and read none of it."""
    wide, narrow = (opened.enter_context(connected(server, receive_bytes=4096)) for _ in range(2))
    wide.sendall(_WIDE * 50)
    narrow.setblocking(False)
    with contextlib.suppress(OSError):
        for _ in range(20_000):
            narrow.send(_GET + b"\r\n")
    assert _answers(server)
    wait_for(lambda: _gone(wide) and _gone(narrow), PATIENCE_S)


def test_a_client_that_takes_its_answer_steadily_gets_all_of_it(
    server: Leaderboard, opened: contextlib.ExitStack
) -> None:
    """Longer than the patience for one that does nothing, and after the server has closed its side."""
    wide = Result("mfu", "failed", "%", "higher", reason="x" * 8 * _MIB)
    run = added(server.store, Made(name="wide", extra=(wide,)))
    line = opened.enter_context(connected(server, receive_bytes=4096))
    asked = f"GET /runs/{run}/files/results.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    line.sendall(asked.encode())
    found = bytearray(line.recv(1000))
    for _ in range(160):
        found += line.recv(4096)
        time.sleep(0.25)
    found += rest(line)
    head, _, body = bytes(found).partition(b"\r\n\r\n")
    (length,) = (int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    assert len(body) == length


@pytest.mark.parametrize("authorized", [False, True])
def test_a_body_beyond_the_limit_is_cut_at_the_limit(server: Leaderboard, authorized: bool) -> None:
    """Its length is said, or it comes in chunks without end; memory does not grow with it."""
    caller = _token(server) if authorized else b""
    with connected(server) as line:
        line.sendall(_POST + caller + b"Content-Length: 5000000000\r\n\r\n")
        assert statuses(line.recv(1000)) == [413]
    before = _peak_bytes(server)
    with connected(server) as line:
        line.sendall(_POST + caller + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = _sent_until_refused(line, b"100000\r\n" + b" " * _MIB + b"\r\n", 2000)
    assert _peak_bytes(server) - before < 64 * _MIB
    assert sent < 2000 * _MIB


def _sent_until_refused(line: socket.socket, chunk: bytes, count: int) -> int:
    """Send a chunk again and again until the server answers, which must refuse, or closes the connection."""
    line.setblocking(False)
    sent = 0
    until = time.monotonic() + PATIENCE_S
    while sent < count * len(chunk):
        assert time.monotonic() < until
        readable, writable, _ = select.select([line], [line], [], 1)
        if readable:
            line.setblocking(True)
            with contextlib.suppress(ConnectionResetError):
                assert statuses(line.recv(1000)) == [413]
            return sent
        if writable:
            begin = sent % len(chunk)
            with contextlib.suppress(BlockingIOError):
                sent += line.send(chunk[begin:])
    raise AssertionError("it was never refused")


def test_ten_thousand_connections_leave_the_server_alive(
    server: Leaderboard, opened: contextlib.ExitStack
) -> None:
    """As many as this process may open, at most 10,000: beyond the limit the server ends each new one."""
    count = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
    assert _answers(server)
    lines: list[socket.socket] = []
    held = 0
    for number in range(count):
        line = opened.enter_context(socket.socket())
        line.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            line.connect((server.address.split("/")[2].split(":")[0], int(server.address.rpartition(":")[2])))
        lines.append(line)
        held = max(held, _sockets(server) if number % 500 == 0 else 0)
    assert held <= 2 * MAX_CONNECTIONS, "with those that were accepted and not ended yet"
    wait_for(lambda: sum(map(_gone, lines)) >= count - MAX_CONNECTIONS, PATIENCE_S)
    opened.close()
    wait_for(lambda: _sockets(server) < MAX_CONNECTIONS // 2, PATIENCE_S)
    assert _answers(server)
    assert "Traceback" not in server.reported
