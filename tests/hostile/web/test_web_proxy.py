"""Through the proxy of the manual, both see the same requests, and nobody chooses where they come from."""

from __future__ import annotations

import re
import select
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ambiguous_requests import AMBIGUOUS, CHUNKED, POST, SECOND
from proxy import proxied
from publishing_server import CALLS, wait_for
from raw_http import statuses

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from proxy import Proxy
    from publishing_server import Leaderboard

ATTACKER, VICTIM = "127.0.0.2", "127.0.0.3"
"""Addresses of this machine from which clients call."""
_LOGGED = b"GET /api/v1/bundles/%b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n"
"""A request that the server refuses, and of which its log states path and client; few without a token are."""
_MORE = {
    "a length before chunks that hide a request": b"Content-Length: %d\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that a tab hides": b"Transfer-Encoding:\tchunked\r\nContent-Length: 4\r\n\r\n1\r\nZ\r\n0\r\n\r\n",
    "chunks in capitals": b"Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n",
    "chunks in quotes": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "chunks after a comma": b"Transfer-Encoding: , chunked\r\n\r\n0\r\n\r\n",
    "chunks after identity": b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "chunks with a name of underscores": b"Transfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks with an extension": b"Transfer-Encoding: chunked\r\n\r\n0;a=b\r\n\r\n",
    "chunks with an extension that holds a line": b"Transfer-Encoding: chunked\r\n\r\n0;a=\n0\r\n\r\n",
    "chunks with a trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 50\r\n\r\n",
    "chunks with spaces": b"Transfer-Encoding: chunked\r\n\r\n0  \r\n\r\n",
    "a length that a client expects to continue": b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
    "a length with a space before it": b" Content-Length: 0\r\n\r\n",
    "a length that the connection is to forget": b"Connection: Content-Length\r\nContent-Length: 0\r\n\r\n",
    "a length with zeros": b"Content-Length: 0000000000000000000\r\n\r\n",
    "a length beyond 64 bits": b"Content-Length: 18446744073709551616\r\n\r\n",
    "an upgrade": b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\nContent-Length: 0\r\n\r\n",
    "headers of 20 KiB": b"X-A: %b\r\n" % (b"a" * 7000) * 3 + b"Content-Length: 0\r\n\r\n",
    "headers of 40 KiB": b"X-A: %b\r\n" % (b"a" * 7000) * 6 + b"Content-Length: 0\r\n\r\n",
    "a thousand headers": b"X-A: b\r\n" * 1000 + b"Content-Length: 0\r\n\r\n",
}
"""Ends of a request, after which a second one follows."""
_HEADS = {
    "absolute": b"GET http://evil.example/api/v1/runs/%b HTTP/1.1\r\nHost: x\r\n\r\n",
    "two hosts": b"GET /api/v1/runs/%b HTTP/1.1\r\nHost: x\r\nHost: evil.example\r\n\r\n",
    "HTTP/1.0": b"GET /api/v1/runs/%b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "HTTP/0.9": b"GET /api/v1/runs/%b\r\n\r\n",
    "a body": b"GET /api/v1/runs/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /",
    "dots": b"GET /api/v1/../v1/runs/%b HTTP/1.1\r\nHost: x\r\n\r\n",
    "slashes": b"GET //api/v1//runs/%b HTTP/1.1\r\nHost: x\r\n\r\n",
    "encoded": b"GET /api/v1/runs/%%2e%%2e%%2f%b HTTP/1.1\r\nHost: x\r\n\r\n",
    "a line within": b"GET /api/v1/runs/%b%%0d%%0aHost:%%20y HTTP/1.1\r\nHost: x\r\n\r\n",
    "another method": b"PUT /api/v1/runs/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "a tunnel": b"CONNECT /api/v1/runs/%b HTTP/1.1\r\nHost: x\r\n\r\n",
}
_FORGED = (
    b"X-Forwarded-For: 203.0.113.9",
    b"x-forwarded-for: 127.0.0.1",
    b"X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 127.0.0.1, 203.0.113.9",
    b"X_Forwarded_For: 203.0.113.9",
    b"X-Forwarded-For : 203.0.113.9",
    b"X-Forwarded-For:\t203.0.113.9",
    b"X-Forwarded-For: " + b"203.0.113.9, " * 300 + b"203.0.113.9",
    b"X-A: b\r\n X-Forwarded-For: 203.0.113.9",
    b"Connection: close, X-Forwarded-For",
    b"Connection: X-Forwarded-For\r\nX-Forwarded-For: 203.0.113.9",
    b"Forwarded: for=203.0.113.9\r\nX-Real-IP: 203.0.113.9\r\nTrue-Client-IP: 203.0.113.9",
    b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil.example\r\nX-Forwarded-Port: 1",
)


def _second(name: str, token: str) -> bytes:
    return _LOGGED % (name.encode(), token.encode())


def _attacks(token: str) -> dict[str, bytes]:
    """Return bytes that may hide a request, whose path has the number of the attack."""
    found = [sent.replace(SECOND, b"") for sent in AMBIGUOUS.values()]
    length = b"%d" % len(_second("smuggled-00", token))
    found += [POST + end.replace(b"%d", length) for end in _MORE.values()]
    named = dict(zip((*AMBIGUOUS, *_MORE), found, strict=True))
    return {
        name: sent + _second(f"smuggled-{number:02}", token)
        for number, (name, sent) in enumerate(named.items())
    } | {name: head % b"headed" + _second("after", token) for name, head in _HEADS.items()}


@pytest.fixture(scope="module", params=[False, True], ids=["as documented", "with shared connections"])
def through(
    request: pytest.FixtureRequest,
    started: Callable[..., object],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Proxy]:
    """Return a proxy in front of a server that trusts it; its connections to the server may be shared."""
    server = started("--trusted-proxy", "127.0.0.1")
    place = tmp_path_factory.mktemp("proxy") / "nginx"
    with proxied(server, place, shared=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def token(through: Proxy) -> str:
    """Return the token of a submitter."""
    return through.server.token("ada")


def test_proxy_and_server_see_the_same_requests_and_no_client_gets_the_answer_of_another(
    through: Proxy, token: str
) -> None:
    """Attackers send what the two may read differently while others ask, each for something of its own."""
    attacks = _attacks(token)
    before = len(through.server.log)

    def ask(number: int) -> None:
        asked = _second(f"victim-{number}", token)
        last = asked.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        answer = through.exchanged(asked + last, VICTIM)
        assert statuses(answer) == [404, 404], answer
        assert re.findall(rb"there is no run '?([\w-]+)", answer) == [b"victim-%d" % number] * 2

    with ThreadPoolExecutor(100) as crowd:
        attackers = {name: crowd.submit(through.exchanged, sent, ATTACKER) for name, sent in attacks.items()}
        victims = [crowd.submit(ask, number) for number in range(20)]
        for each in victims:
            each.result()
        for name, each in attackers.items():
            assert len([status for status in statuses(each.result()) if status != 100]) <= 2, name
    for number in range(20, 30):
        ask(number)
    refused = through.server.log[before:]
    assert {line["client"] for line in refused} == {ATTACKER, VICTIM}
    wait_for(lambda: len(_refused_by_the_server(through)) >= len(refused))  # logged after the answer
    forwarded = _refused_by_the_server(through)
    for name in ("", "smuggled", "after", "headed", "victim"):
        theirs = Counter((line["client"], line["method"]) for line in refused if name in line["path"])
        seen = [each for each in forwarded if name in each["request"]]
        assert Counter((each["client"], each["request"].partition(" ")[0]) for each in seen) == theirs, name
    assert "Traceback" not in through.server.reported


def _refused_by_the_server(through: Proxy) -> list[dict[str, str]]:
    """Return what the proxy forwarded and the server logs: neither pages nor what it could not read."""
    return [
        each
        for each in through.forwarded
        if each["status"] not in {"200", "400"} and "//api/" not in each["request"]
    ]


@pytest.mark.parametrize("header", _FORGED)
def test_a_client_cannot_choose_the_address_that_it_comes_from(through: Proxy, header: bytes) -> None:
    before = len(through.server.log)
    sent = b"GET /api/v1/runs/forged HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + b"\r\n\r\n"
    answered = statuses(through.exchanged(sent, ATTACKER))
    lines = through.server.log[before:]
    assert answered in ([404], [400])
    assert [line["client"] for line in lines] == [ATTACKER] * len(lines)
    assert len(lines) == (answered == [404])


def test_requests_of_one_connection_are_answered_in_their_order(through: Proxy, token: str) -> None:
    """Pipelined, with bodies of each kind, and of HTTP/1.0 that keeps its connection."""
    body = POST + b"Content-Length: 2\r\n\r\n{}" + POST + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n"
    old = b"GET /api/v1/runs/%b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    first, second, last = (_second(name, token) for name in ("a-1", "a-2", "a-4"))
    sent = first + body + second + old % b"a-3" + last
    answer = through.exchanged(sent)
    assert statuses(answer) == [404, 401, 401, 404, 404, 404]
    assert re.findall(rb"there is no run '?([\w-]+)", answer) == [b"a-1", b"a-2", b"a-3", b"a-4"]


def test_an_upload_passes_the_proxy_whatever_its_size_and_a_refusal_comes_back(
    through: Proxy, token: str
) -> None:
    """Other bodies end at the proxy, beyond the size that the server takes."""
    address, large = f"http://127.0.0.1:{through.port}/api/v1", b"x" * 5_000_000

    def sent(path: str, token: str, content: bytes | Iterator[bytes]) -> int:
        headers = {"content-type": "application/gzip", "authorization": f"Bearer {token}"}
        return CALLS.post(f"{address}/{path}", content=content, headers=headers).status_code

    assert sent("bundles", token, large) == 422
    assert sent("bundles", token, iter([large, large])) == 422
    assert sent("bundles", "forged", b"x") == 401
    assert sent("tokens", token, b"x" * (64 << 10)) in {403, 422}
    assert sent("tokens", token, large) == 413


def test_slow_clients_hold_connections_of_the_proxy_and_none_of_the_server(
    through: Proxy, token: str, tmp_path: Path
) -> None:
    """One address has at most fifty requests at a time; others are served meanwhile."""
    slow = POST + b"Content-Length: 60\r\n\r\n"
    with proxied(through.server, tmp_path / "nginx", patience="600s") as patient, ExitStack() as stack:
        before = _sockets(patient.server)
        lines = [stack.enter_context(patient.connected(ATTACKER)) for _ in range(70)]
        for line in lines:
            line.sendall(slow)
        wait_for(lambda: len(_answered(lines)) >= 20)
        others = _second("other", token) + _second("more", token)
        assert statuses(patient.exchanged(others, VICTIM)) == [404, 404]
        refused = _answered(lines)
        assert len(refused) == 20
        assert {status for line in refused for status in statuses(line.recv(1000))} == {429}
        wait_for(lambda: _sockets(patient.server) <= before)


def _answered(lines: list[socket.socket]) -> list[socket.socket]:
    return select.select(lines, [], [], 0)[0]


def _sockets(server: Leaderboard) -> int:
    """Return the number of sockets that a server has open."""
    found = 0
    for path in Path(f"/proc/{server.process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found += str(path.readlink()).startswith("socket:")
    return found
