"""What needs the whole table is asked of the database once, until the index changes, by whichever process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import pytest
from leaderboard_bundles import Made, added, changed, placed
from leaderboard_client import Client
from sqlalchemy import event

from ccl_bench.leaderboard.store import State, Store, new_event, open_store
from ccl_bench.leaderboard.web import kept_answers
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

Result = TypeVar("Result")

RUN = Made(values={"mfu": 40.0})
TABLES = ("/", "/?phase=any", "/?q=lovelace&sort=mfu", "/api/v1/runs", "/workloads", "/api/v1/workloads")


def finished(waiting: Coroutine[Any, Any, Result]) -> Result:
    """Return what a coroutine comes to, in a thread: a browser test leaves a loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, waiting).result()


@pytest.fixture
def asked(small: Store) -> Iterator[list[str]]:
    """Return what the database is asked, as it is asked."""
    found: list[str] = []

    def note(_c: object, _s: object, statement: str, *_: object) -> None:
        found.append(statement)

    event.listen(small.engine, "before_cursor_execute", note)
    yield found
    event.remove(small.engine, "before_cursor_execute", note)


def test_the_same_question_asks_the_database_once(small: Store, asked: list[str]) -> None:
    run = added(small, RUN)
    client = Client(create_app(small))
    for address in (*TABLES, f"/runs/{run}", f"/compare?run={run}"):
        first = client.get(address)
        asked.clear()
        again = client.get(address)
        assert asked == [], address
        assert (again.content, again.headers) == (first.content, first.headers)


def test_readers_who_ask_at_once_wait_for_one_answer(small: Store, asked: list[str]) -> None:
    added(small, RUN)
    app = create_app(small)

    async def crowd(count: int) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://leaderboard") as client:
            return await asyncio.gather(*(client.get(f"/?q={count}") for _ in range(count)))

    finished(crowd(1))
    asked.clear()
    finished(crowd(2))
    alone = len(asked)
    asked.clear()
    assert {answer.status_code for answer in finished(crowd(20))} == {200}
    assert len(asked) == alone > 0


@pytest.mark.parametrize("kind", ["here", "elsewhere", "copied"])
def test_a_change_is_seen_at_once_whoever_makes_it(small: Store, kind: str) -> None:
    """Made by the server, by another process on the same folder, or by copying a run into it."""
    run = added(small, RUN)
    client = Client(create_app(small))
    for address in TABLES:
        client.get(address)
    other = small if kind == "here" else open_store(small.data)
    if kind == "copied":
        placed(small.data, [changed(RUN, name="copied", values={"mfu": 50.0})])
    else:
        added(other, changed(RUN, name="other", values={"mfu": 50.0}))
    assert client.get("/api/v1/runs").json()["total"] == 2
    assert "2 runs" in client.get("/").text
    other.record(run, new_event(State.WITHDRAWN, "Ada Lovelace", "a mistake"))
    assert client.get("/api/v1/runs").json()["total"] == 1
    assert "a mistake" in client.get(f"/runs/{run}").text
    other.engine.dispose()


def test_refusals_and_what_the_server_says_of_itself_are_not_kept(small: Store, asked: list[str]) -> None:
    client = Client(create_app(small))
    for address in ("/runs/ffffffff", "/api/v1/health", "/api/v1/runs.csv"):
        client.get(address)
        asked.clear()
        client.get(address)
        assert asked, address


def test_packed_and_plain_answers_are_kept_apart(small: Store) -> None:
    added(small, RUN)
    client = Client(create_app(small))
    plain = client.get("/").text

    async def unpacked() -> httpx.Response:
        transport = httpx.ASGITransport(client.app)
        headers = {"accept-encoding": "identity"}
        async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as other:
            return await other.get("/")

    found = finished(unpacked())
    assert "content-encoding" not in found.headers
    assert found.text == plain


def test_answers_are_dropped_before_they_fill_the_memory(
    small: Store, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answers, "MOST_BYTES", 50_000)
    added(small, RUN)
    client = Client(create_app(small))
    size = len(client.get("/?q=x0").content)
    for number in range(50_000 // size * 20):
        client.get(f"/?q=x{number}")
    asked.clear()
    client.get("/?q=x0")
    assert asked, "the first was dropped"
