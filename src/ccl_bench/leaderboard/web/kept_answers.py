"""Answers to readers: kept by their content, and made for a few callers at the same time."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

from anyio import to_thread

from ccl_bench.leaderboard.pages.compare import MAX_RUNS
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.web.rate_limits import network_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ccl_bench.leaderboard.store import Store

MOST_BYTES = 32 << 20
"""Of all answers together; the least recently used ones are dropped first."""
_LARGEST_BYTES = MOST_BYTES // 8
"""Of one answer: an export of the whole table must not drop all others."""
_MOST_REQUESTS = 10_000
"""Requests whose content is remembered; a stranger may invent any number."""
OF_ADDRESS, OF_ALL = 2, 4
"""Answers that are made at the same time for one address, and for all.

One thread of Python runs at a time, so that more would be done no earlier. But each thread that computes
delays any other request by 5 ms (`sys.getswitchinterval`) each time that it has to wait for its turn.
"""
_LARGE_BYTES = 1 << 20
"""Of an answer that counts until it is sent: a client who receives slowly holds it in memory."""

_TABLES = {"/", "/api/v1/runs", "/api/v1/answer"}
_STREAMS = re.compile(r"/api/v1/runs\.(csv|json|parquet)|/runs/[^/]+/files/[^/]+")
"""Answers that are sent piece by piece, and never held in memory."""
_OF_RUN = re.compile(r"(?P<kind>/api/v1|)/runs/(?P<run>[^/]+)(?P<part>/report|/badge\.svg|)")
_WORKLOADS = re.compile(
    r"(/api/v1)?/workloads(/[^/]+)?|/workloads/[^/]+/picture\.svg|/sources/[^/]+|/api/v1/sources|/gaps"
)
_FEED = "/feed.atom"
_OF_PROGRAM = re.compile(r"/static/[^/]+|/metrics|/api|/openapi\.json")
"""What is the same for every leaderboard of this version, but takes time to make or to pack."""


class _Request(NamedTuple):
    """Everything in a request that its answer depends on."""

    path: str
    parameters: tuple[tuple[str, str], ...]
    is_packed: bool


_Content = tuple[object, ...]
"""What an answer is made of, beside the files of bundles, which never change."""


class AnswerCache:
    """Repeats an earlier answer to a request while its content is unchanged.

    Tables and workloads change with the index, pages of runs and comparisons with the rows of their runs.
    Concurrent requests for one answer wait, so that it is computed once. Only public pages and tables are
    stored, and only successful ones.
    """

    def __init__(self, app: ASGIApp, store: Store) -> None:
        self._app = app
        self._store = store
        self._version = store.version
        self._contents: dict[_Request, _Content] = {}
        """Content of the answers to requests, while the index is unchanged."""
        self._answers: OrderedDict[_Content, list[Message]] = OrderedDict()
        self._bytes = 0
        self._making: WeakValueDictionary[_Request, asyncio.Lock] = WeakValueDictionary()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = _reading_request(scope) if scope["type"] == "http" else None
        if request is None:
            await self._app(scope, receive, send)
            return
        address = network_of(scope["client"][0]) if scope.get("client") else "unknown"
        turn = self._turns.setdefault(address, asyncio.Semaphore(OF_ADDRESS))
        if _STREAMS.fullmatch(request.path):
            async with turn:
                await self._app(scope, receive, send)
            return
        answer = self._kept_answer(request)
        if answer is None:
            async with turn, self._making.setdefault(request, asyncio.Lock()):
                answer = self._kept_answer(request) or await self._new_answer(request, scope, receive)
        async with turn if _size(answer) > _LARGE_BYTES else nullcontext():
            for message in answer:
                await send(message)

    def _kept_answer(self, request: _Request) -> list[Message] | None:
        self._forget_contents_before(self._store.version)
        content = self._contents.get(request)
        if content is None or content not in self._answers:
            return None
        self._answers.move_to_end(content)
        return self._answers[content]

    async def _new_answer(self, request: _Request, scope: Scope, receive: Receive) -> list[Message]:
        async with self._turns.setdefault("all", asyncio.Semaphore(OF_ALL)):
            version, content = await to_thread.run_sync(self._content, request)
            answer = self._answers.get(content)
            if answer is None:
                answer = await _collected(self._app, scope, receive)
            if version != self._store.version or answer[0]["status"] != 200:
                return answer
            self._keep(content, answer)
            self._forget_contents_before(version)  # looking for the content may have updated the index
            self._contents[request] = content
            return answer

    def _forget_contents_before(self, version: tuple[int, int]) -> None:
        if version != self._version or len(self._contents) > _MOST_REQUESTS:
            self._version = version
            self._contents.clear()

    def _keep(self, content: _Content, answer: list[Message]) -> None:
        if content in self._answers or _size(answer) > _LARGEST_BYTES:
            return
        self._answers[content] = answer
        self._bytes += _size(answer)
        while self._bytes > MOST_BYTES:
            self._bytes -= _size(self._answers.popitem(last=False)[1])

    def _content(self, request: _Request) -> tuple[tuple[int, int], _Content]:
        """Return the version of the index, and the content of an answer in that version."""
        self._store.catch_up_if_changed()
        version = self._store.version
        of_run = _OF_RUN.fullmatch(request.path)
        names = [value for _, value in request.parameters] if request.path == "/compare" else []
        if not of_run and not names:
            return version, (version, *request)
        with self._store.engine.connect() as connection:
            if of_run and not of_run["part"]:
                listed = query_result.find_run(connection, of_run["run"])
                return version, (of_run["kind"], request.is_packed, repr(listed))
            named = [of_run["run"]] if of_run else list(dict.fromkeys(names))[:MAX_RUNS]
            rows = [query_result.find_run(connection, name, ()) for name in named]
        part = of_run["part"] if of_run else f"compare, {len(names) > MAX_RUNS}"
        return version, (part, request.is_packed, repr([row and row.run for row in rows]))


def _reading_request(scope: Scope) -> _Request | None:
    """Return a request for an answer that costs time to make; None for any other."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    names: Collection[str] = ()
    if path in _TABLES or (path.startswith("/api/") and _STREAMS.fullmatch(path)):
        names = RunQuery.model_fields
    elif path == "/compare":
        names = {"run"}
    elif _WORKLOADS.fullmatch(path):
        names = {"metric", "by"}
    elif path != _FEED and not any(pattern.fullmatch(path) for pattern in (_OF_RUN, _STREAMS, _OF_PROGRAM)):
        return None
    if any(name == b"if-none-match" for name, _ in scope["headers"]):
        return None
    # A page answers HEAD as it answers GET, and the server leaves out the text.
    if scope["method"] != "GET" and (scope["method"] != "HEAD" or path.startswith("/api/")):
        return None
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    parameters = tuple((name, value) for name, value in pairs if name in names)
    is_packed = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
    return _Request(path, parameters, is_packed)


async def _collected(app: ASGIApp, scope: Scope, receive: Receive) -> list[Message]:
    answer: list[Message] = []

    async def collect(message: Message) -> None:
        answer.append(message)

    await app(scope, receive, collect)
    return answer


def _size(answer: list[Message]) -> int:
    return sum(len(message.get("body", b"")) for message in answer)
