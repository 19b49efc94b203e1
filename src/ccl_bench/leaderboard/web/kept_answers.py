"""A cache of answers to readers, valid until the index changes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ccl_bench.leaderboard.store import Store

MOST_BYTES = 32 << 20
"""Of all answers together; the least recently used ones are dropped first."""
_LARGEST_BYTES = MOST_BYTES // 8
"""Of one answer: an export of the whole table must not drop all others."""
_PAGES = ("/runs/", "/workloads", "/compare", "/api/v1/runs/", "/api/v1/workloads")
_TABLES = {"/", "/api/v1/runs"}

_Key = tuple[str, bytes, bool]


class AnswerCache:
    """Repeats an earlier answer to the same request while the index is unchanged.

    Concurrent requests for one answer wait, so that it is computed once. Only public pages and tables are
    stored, and only successful ones.
    """

    def __init__(self, app: ASGIApp, store: Store) -> None:
        self._app = app
        self._store = store
        self._version = store.version
        self._answers: OrderedDict[_Key, list[Message]] = OrderedDict()
        self._bytes = 0
        self._making: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        is_public = path in _TABLES or path.startswith(_PAGES)
        if scope["type"] != "http" or scope["method"] != "GET" or not is_public:
            await self._app(scope, receive, send)
            return
        is_packed = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
        key = (scope["path"], scope["query_string"], is_packed)
        answer = self._stored_answer(key)
        if answer is None:
            lock = self._making.setdefault(key, asyncio.Lock())
            async with lock:
                answer = self._stored_answer(key) or await self._new_answer(key, scope, receive)
        for message in answer:
            await send(message)

    def _stored_answer(self, key: _Key) -> list[Message] | None:
        version = self._store.version
        if version != self._version:
            self._version, self._bytes = version, 0
            self._answers.clear()
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    async def _new_answer(self, key: _Key, scope: Scope, receive: Receive) -> list[Message]:
        answer: list[Message] = []
        before = self._version

        async def collect(message: Message) -> None:
            answer.append(message)

        await self._app(scope, receive, collect)
        size = _size(answer)
        if before == self._version and answer[0]["status"] == 200 and size <= _LARGEST_BYTES:
            self._answers[key] = answer
            self._bytes += size
            while self._bytes > MOST_BYTES:
                self._bytes -= _size(self._answers.popitem(last=False)[1])
        return answer


def _size(answer: list[Message]) -> int:
    return sum(len(message.get("body", b"")) for message in answer)
