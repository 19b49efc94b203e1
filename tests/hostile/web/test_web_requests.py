"""Requests that forge, inject, or carry secrets where none belong, to a server as its operator starts it."""

from __future__ import annotations

import base64
import json
import re
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from commands import ROOT, invoke
from fastapi.routing import APIRoute
from leaderboard_bundles import Made, added
from publishing_server import CALLS
from raw_http import exchanged, statuses
from sqlalchemy import event, select

from ccl_bench.leaderboard.publishing.tokens import Role, authenticate
from ccl_bench.leaderboard.store.tables import METADATA
from ccl_bench.leaderboard.web import page_routes
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from publishing_server import Leaderboard

_FORGED = {
    "x-forwarded-for": "203.0.113.9",
    "x-forwarded-proto": "https",
    "x-forwarded-host": "evil.example",
    "x-forwarded-prefix": "/evil",
    "x-real-ip": "203.0.113.9",
    "forwarded": "for=203.0.113.9;host=evil.example;proto=https",
    "host": "evil.example",
}
_READERS = (
    "",
    "workloads",
    "compare",
    "metrics",
    "api",
    "nothing",
    "workloads/",
    "api/v1/runs/",
    "api/v1/nothing",
)


def _client_in_log(server: Leaderboard, **forwarded: str) -> str:
    """Make a call that is refused, and return whom the log says it came from."""
    headers = {name.replace("_", "-"): value for name, value in forwarded.items()}
    assert server.asked("GET", "tokens", headers=headers).status_code == 401
    found: str = server.log[-1]["client"]
    return found


@pytest.fixture(scope="module")
def proxied(started: Callable[..., Leaderboard]) -> Leaderboard:
    """Return a server to which this machine is a trusted proxy, and 10.0.0.0/24 others before it."""
    return started("--trusted-proxy", "127.0.0.1", "--trusted-proxy", "10.0.0.0/24")


def test_without_a_trusted_proxy_nobody_says_who_they_are_and_the_environment_trusts_none(
    server: Leaderboard,
) -> None:
    assert _client_in_log(server, **_FORGED) == "127.0.0.1"


def test_a_proxy_that_is_trusted_leaves_others_without_trust_whatever_the_environment_says(
    started: Callable[..., Leaderboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert _client_in_log(started("--trusted-proxy", "10.0.0.7"), **_FORGED) == "127.0.0.1"


def test_a_trusted_proxy_says_who_calls_and_what_the_caller_claims_before_it_counts_for_nothing(
    proxied: Leaderboard,
) -> None:
    assert _client_in_log(proxied, x_forwarded_for="198.51.100.4") == "198.51.100.4"
    assert _client_in_log(proxied, x_forwarded_for="203.0.113.9, 198.51.100.4") == "198.51.100.4"
    assert _client_in_log(proxied, x_forwarded_for="203.0.113.9, 198.51.100.4, 10.0.0.3") == "198.51.100.4"


def test_what_is_no_address_of_a_proxy_is_refused(tmp_path: Path) -> None:
    for wrong in ("*", "proxy.example", "10.0.0.0/33"):
        done = invoke(["ccl-bench", "serve", str(tmp_path), "--trusted-proxy", wrong])
        assert done.returncode == 2, done.stderr
        assert "is not an address" in done.stderr


@pytest.mark.parametrize("kind", ["server", "proxied"])
def test_no_answer_depends_on_the_host_that_a_request_names(
    request: pytest.FixtureRequest, kind: str
) -> None:
    asked: Leaderboard = request.getfixturevalue(kind)
    for path in _READERS:
        answer = CALLS.get(f"{asked.address}/{path}", headers=_FORGED, follow_redirects=False)
        assert "location" not in answer.headers
        assert "evil" not in answer.text
        assert answer.text == asked.page(path).text


_NASTY = {
    "a line": "x\r\nX-Injected: 1\r\n\r\n<script>",
    "a log line": 'x\n{"at": "2026", "event": "published"}',
    "a terminal's escape": "x\x1b]0;owned\x07\x1b[2J",
    "C1 controls": "x\x9b31m\x85y",
    "separators": "x\u2028y\u2029z\u202e",
    "NUL": "x\0y",
}


@pytest.mark.parametrize("nasty", _NASTY.values(), ids=_NASTY)
def test_nothing_in_a_request_writes_headers_or_lines_of_a_log(server: Leaderboard, nasty: str) -> None:
    ours, text = set(CALLS.get(f"{server.address}/nothing").headers), quote(nasty, safe="")
    before, said = len(server.log), server.reported
    calls = [f"nothing/{text}", f"runs/{text}", f"?q={text}", f"?sort={text}", f"static/{text}"]
    calls += [
        f"api/v1/runs/{text}",
        f"api/v1/runs?page={text}",
        f"api/v1/bundles/{text}",
        f"workloads/{text}",
    ]
    calls += [f"api/v1/runs.csv?q={text}", f"api/v1/bundles?state={text}", f"api/v1/tokens/{text}"]
    known = ours | {"content-disposition", "content-encoding", "vary", "transfer-encoding", "allow"}
    known |= {"www-authenticate"}
    for call in calls:
        for headers in ({}, {"user-agent": nasty.encode("ascii", "ignore").translate(None, b"\r\n\0")}):
            answer = CALLS.get(f"{server.address}/{call}", headers=headers)
            assert answer.status_code < 500
            assert set(answer.headers) <= known, call
    assert len(server.log) > before
    assert all({"at", "event"} <= line.keys() for line in server.log)
    assert {line["event"] for line in server.log[before:]} == {"refused"}
    raw = (server.data / "publishing.log").read_bytes() + server.reported.encode()
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]", raw)
    assert server.reported.count("\n") == said.count("\n")


def test_a_raw_control_character_in_a_request_is_refused_before_anything_sees_it(server: Leaderboard) -> None:
    before = server.log
    for raw in (b"/\x1b[2J", b"/?q=\x00", b"/\x7f", b"/\xff", b"/a b"):
        sent = b"GET " + raw + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert statuses(exchanged(server, sent)) == [400], raw
    assert server.log == before
    assert b"\x1b" not in server.reported.encode()


_CHANGING = {
    ("POST", "/api/v1/bundles"): None,
    ("POST", "/api/v1/bundles/{run}/withdraw"): {"note": "x"},
    ("POST", "/api/v1/bundles/{run}/approve"): {"note": "x"},
    ("POST", "/api/v1/bundles/{run}/recompute"): None,
    ("POST", "/api/v1/tokens"): {"submitter": "mallory", "role": "admin"},
    ("DELETE", "/api/v1/tokens/{token}"): None,
}
"""Every route that changes something, with a body that it would take."""


def _state(server: Leaderboard) -> list[Any]:
    """Return all that a database holds."""
    with server.store.engine.connect() as connection:
        tables = METADATA.sorted_tables
        return [sorted(map(repr, connection.execute(select(table)).all())) for table in tables]


def test_every_route_that_may_change_something_is_known_here(server: Leaderboard) -> None:
    described = create_app(server.store).openapi()["paths"]
    changing = {
        (method.upper(), path) for path, methods in described.items() for method in methods if method != "get"
    }
    assert changing == _CHANGING.keys()
    for path in _paths(server):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            if not any(_fits(path, each) and method == of for of, each in _CHANGING):
                assert CALLS.request(method, server.address + path).status_code in {404, 405}, (method, path)


def _paths(server: Leaderboard) -> list[str]:
    """Return an address of every route, in the description or not."""
    app = create_app(server.store)
    found = [path.replace("{", "").replace("}", "") for path in app.openapi()["paths"]]
    pages = ["/", "/runs/x", "/runs/x/report", "/runs/x/files/x", "/workloads", "/workloads/x", "/compare"]
    return [*found, *pages, "/metrics", "/api", "/static/x", "/openapi.json"]


def _fits(path: str, template: str) -> bool:
    return bool(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path))


@pytest.mark.parametrize(("method", "path"), _CHANGING)
def test_a_page_elsewhere_can_change_nothing_through_the_browser_of_a_maintainer(
    server: Leaderboard, method: str, path: str
) -> None:
    """A browser sends cookies and what it knows of a site by itself, never a token of ours."""
    token = server.token("root", Role.ADMIN)
    (run,) = (each["id"] for each in server.runs())
    before = _state(server)
    place = server.address + path.replace("{run}", run).replace("{token}", token.split("_")[1])
    basic = f"Basic {base64.b64encode(f'root:{token}'.encode()).decode()}"
    for sent in (
        {
            "headers": {
                "origin": "https://evil.example",
                "cookie": f"token={token}; authorization=Bearer {token}",
            }
        },
        {"headers": {"origin": "null", "authorization": basic}},
        {"headers": {"sec-fetch-site": "cross-site", "x-token": token, "x-api-key": token}},
        {"params": {"token": token, "access_token": token}},
    ):
        answer = CALLS.request(method, place, json=_CHANGING[method, path], **sent)
        assert answer.status_code == 401, (answer.text, sent)
        assert not {"set-cookie", "access-control-allow-origin"} & set(answer.headers)
    form = CALLS.request(method, place, data={"token": token, "submitter": "mallory"})
    assert form.status_code in {401, 422}
    asked = {"origin": "https://evil.example", "access-control-request-method": method}
    preflight = CALLS.options(place, headers=asked | {"access-control-request-headers": "authorization"})
    assert preflight.status_code == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]
    assert _state(server) == before


def test_the_cost_of_every_request_is_stated(server: Leaderboard) -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    stated = set(
        re.findall(
            r"`(/[^`]*)`", page.partition("### What bounds the cost of a request")[2].partition("\n## ")[0]
        )
    )
    app = create_app(server.store)
    pages = {route.path for route in page_routes.router.routes if isinstance(route, APIRoute)}
    assert stated == {*app.openapi()["paths"], *pages, "/openapi.json"}


def test_reading_changes_nothing(server: Leaderboard) -> None:
    (run,) = (each["id"] for each in server.runs())
    token = server.token("root", Role.ADMIN)
    before = _state(server)
    for path in _paths(server):
        known = path.replace("/run/", f"/{run}/").removesuffix("run")
        for address in {path, path.replace("/x", f"/{run}"), known + run if path.endswith("/run") else path}:
            headers = {"authorization": f"Bearer {token}"}
            answer = CALLS.get(f"{server.address}{address}", headers=headers)
            assert answer.status_code < 500
            assert "set-cookie" not in answer.headers
    assert _state(server) == before


class _Counted:
    """Counts comparisons in constant time, and notes what the database is asked."""

    def __init__(self, server: Leaderboard) -> None:
        self.server, self.asked, self.compared = server, [], 0  # type: ignore[var-annotated]

    def __call__(self, token: str) -> tuple[int, int]:
        """Authenticate, and return the numbers of comparisons and of queries."""
        self.asked, self.compared = [], 0
        engine = self.server.store.engine
        event.listen(engine, "before_cursor_execute", self._query)
        sys.setprofile(self._call)
        try:
            authenticate(engine, token)
        finally:
            sys.setprofile(None)
            event.remove(engine, "before_cursor_execute", self._query)
        return self.compared, len(self.asked)

    def _query(self, _c: object, _s: object, statement: str, given: object, *_: object) -> None:
        self.asked.append(f"{statement} {given}")

    def _call(self, _frame: object, what: str, function: object) -> None:
        self.compared += what == "c_call" and getattr(function, "__name__", "") == "compare_digest"


def test_the_time_of_a_refusal_says_nothing_about_a_token(server: Leaderboard) -> None:
    """A right one, those wrong in their first and last character, and an unknown one take the same steps.

    The database is asked for the public number alone, and what it keeps is compared in constant time.
    """
    token = server.token("ada")
    secret = token[len("cclb_123456789abc_") :]
    other = {"A": "B"}.get(secret[0], "A"), {"A": "B"}.get(secret[-1], "A")
    forged = [
        token.replace(secret, other[0] + secret[1:]),
        token[:-1] + other[1],
        f"cclb_{'0' * 12}_{secret}",
    ]
    counted = _Counted(server)
    steps = set()
    for each in (token, *forged):
        steps.add(counted(each))
        assert not any(secret[1:-1] in asked for asked in counted.asked)
    ((compared, _),) = steps
    assert compared == 1


def _everything_written(server: Leaderboard) -> str:
    """Return every log and text that the server has written anywhere below its data directory."""
    files = [path for path in server.data.rglob("*") if path.is_file()]
    return "".join(path.read_bytes().decode("utf-8", "replace") for path in files)


def test_no_log_holds_a_token_wherever_it_is_misplaced(server: Leaderboard) -> None:
    token = server.token("root", Role.ADMIN)
    secret = token[len("cclb_123456789abc_") :]
    right = {"authorization": f"Bearer {token}"}
    misplaced = [f"runs/{token}", f"?token={token}", f"nothing/{token}?a={token}", f"static/{token}"]
    misplaced += [f"api/v1/runs/{token}", f"api/v1/runs?page={token}", f"api/v1/tokens?token={token}"]
    misplaced += [f"api/v1/bundles/{token}", f"api/v1/nothing?{token}", f"api/v1/bundles?state={token}"]
    for path in misplaced:
        for headers in ({}, right, {"user-agent": token, "referer": f"http://x/?{token}", "x": token}):
            assert CALLS.get(f"{server.address}/{path}", headers=headers).status_code < 500
    server.asked("DELETE", f"tokens/{token}", token)
    server.asked("POST", "tokens", token, json={"submitter": token, "role": "admin"})
    server.asked("POST", "tokens", token, content=token.encode())
    server.asked("POST", f"bundles/{token}/withdraw", token, json={"note": token})
    server.sent(token.encode(), token)
    server.asked("POST", "bundles", headers={"content-type": token, **right}, content=b"x")
    server.asked("POST", "bundles", headers={"authorization": f"Basic {token}"}, content=b"x")
    server.asked("GET", "tokens", token[:-1] + "!")
    exchanged(server, f"GET /{token} HTTP/1.1\r\nauthorization: {token}\r\n\r\n".encode())
    exchanged(server, f"{token}\r\n\r\n".encode())
    assert any(token.split("_")[1] in str(line) for line in server.log)
    assert secret not in _everything_written(server)


@pytest.fixture
def listener() -> Iterator[tuple[int, list[str]]]:
    """Give a port of this machine, and whoever connects to it, over IPv4 or IPv6."""
    found: list[str] = []
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening:

        def accept() -> None:
            while True:
                try:
                    line, address = listening.accept()
                except OSError:
                    return
                found.append(address[0])
                line.close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield listening.getsockname()[1], found
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


_ADDRESSES = (
    "http://127.0.0.1:{}/latest/meta-data",
    "http://localhost:{}/",
    "http://2130706433:{}/",
    "http://0x7f000001:{}/",
    "http://0177.0.0.1:{}/",
    "http://127.1:{}/",
    "http://[::1]:{}/",
    "http://[::ffff:127.0.0.1]:{}/",
    "http://[::ffff:7f00:1]:{}/",
    "http://0.0.0.0:{}/",
    "http://evil@127.0.0.1:{}/",
    "http://127.0.0.1.nip.example:{}/",
    "https://127.0.0.1:{}/redirect?to=http://127.0.0.1/",
    "ftp://127.0.0.1:{}/",
    "s3://127.0.0.1:{}/bucket/run",
    "gopher://127.0.0.1:{}/_x",
    "file:///etc/passwd?{}",
)


RECOMPUTED = 6
"""Runs with such addresses that a worker would recompute."""


def test_the_server_visits_no_address_that_a_bundle_names(
    proxied: Leaderboard, listener: tuple[int, list[str]]
) -> None:
    """Neither when it takes the bundle in, nor when it shows it, nor when a worker would recompute it."""
    port, visitors = listener
    with socket.create_connection(("127.0.0.1", port)):
        pass
    server = proxied
    for number, template in enumerate(_ADDRESSES):
        added(server.store, _Linked(name=f"run-{number}", address=template.format(port)))
    token = server.token("root", Role.MAINTAINER)
    runs = [each["id"] for each in server.runs()]
    assert len(runs) == len(_ADDRESSES) + 1
    for run in runs:
        for path in (f"runs/{run}", f"runs/{run}/report", f"api/v1/runs/{run}", f"compare?run={run}"):
            assert server.page(path).status_code in {200, 404}
    for run in runs[:: len(runs) // RECOMPUTED + 1]:
        server.asked("POST", f"bundles/{run}/recompute", token)
    assert server.work().returncode == 0
    assert visitors == ["::ffff:127.0.0.1"], "but for the visit that shows that visits are seen"
    shown = json.dumps([server.asked("GET", f"runs/{run}").json() for run in runs])
    assert "0x7f000001" in shown, "the addresses were taken in"


class _Linked(Made):
    """A run whose card names an address."""

    def __init__(self, *, name: str, address: str) -> None:
        super().__init__(name=name, values={"mfu": 1.0})
        object.__setattr__(self, "_address", address)

    @property
    def card(self) -> str:
        """The card's text."""
        address: str = object.__getattribute__(self, "_address")
        return Made.card.fget(self).replace("contributor:", f"trace_url: {json.dumps(address)}\ncontributor:")  # type: ignore[attr-defined]
