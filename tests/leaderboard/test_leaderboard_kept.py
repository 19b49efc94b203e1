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

from ccl_bench.leaderboard.pages.compare import MAX_RUNS
from ccl_bench.leaderboard.store import State, Store, new_event, open_store
from ccl_bench.leaderboard.web import kept_answers, page_routes
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from starlette.types import Message, Receive, Scope, Send

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
    client.get("/")
    workload = client.get("/api/v1/workloads").json()[0]["key"]
    pictures = (f"/runs/{run}/badge.svg", f"/workloads/{workload}/picture.svg")
    for address in (*TABLES, f"/runs/{run}", f"/compare?run={run}", "/compare", "/feed.atom", *pictures):
        first = client.get(address)
        asked.clear()
        again = client.get(address)
        assert asked == [], address
        assert (again.content, again.headers) == (first.content, first.headers)


def test_readers_who_ask_at_once_wait_for_one_answer(small: Store, asked: list[str]) -> None:
    added(small, RUN)
    app = create_app(small)

    async def crowd(count: int, question: str) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://leaderboard") as client:
            return await asyncio.gather(*(client.get(f"/?q={question}") for _ in range(count)))

    finished(crowd(1, "first"))
    asked.clear()
    finished(crowd(1, "alone"))
    alone = len(asked)
    asked.clear()
    assert {answer.status_code for answer in finished(crowd(20, "together"))} == {200}
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


def test_what_is_made_of_a_run_alone_outlives_changes_of_the_index(
    small: Store, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = added(small, changed(RUN, report=example.read_bytes()))
    client = Client(create_app(small))
    pages = (f"/runs/{run}/report", f"/compare?run={run}")
    before = [client.get(page).content for page in pages]
    made: list[str] = []
    for module, name in ((page_routes, "full_report"), (page_routes.comparing, "compare_page")):
        monkeypatch.setattr(module, name, lambda *_, name=name, **__: made.append(name) or "made anew")
    added(small, changed(RUN, name="other", model="another", values={"mfu": 50.0}))
    assert [client.get(page).content for page in pages] == before
    assert made == []
    small.record(run, new_event(State.WITHDRAWN, "Ada Lovelace"))
    assert [client.get(page).text for page in pages] == ["made anew"] * 2
    small.record(run, new_event(State.QUARANTINED, "Ada Lovelace"))
    assert [client.get(page).status_code for page in pages] == [404, 404]


def test_a_page_of_a_run_shows_its_new_rank_at_once(small: Store) -> None:
    run = added(small, RUN)
    client = Client(create_app(small))
    assert "no comparable number" in client.get(f"/runs/{run}").text
    added(small, changed(RUN, name="faster", values={"mfu": 50.0}))
    assert "rank 2 of 2" in client.get(f"/runs/{run}").text


def test_parameters_that_change_nothing_make_no_new_answer(small: Store, asked: list[str]) -> None:
    run = added(small, RUN)
    client = Client(create_app(small))
    for page in (f"/runs/{run}", "/workloads", "/metrics", f"/compare?run={run}"):
        client.get(page)
        asked.clear()
        client.get(f"{page}{'&' if '?' in page else '?'}nothing=1")
        assert asked == [], page


def test_a_comparison_of_many_names_looks_up_no_more_than_it_shows(small: Store, asked: list[str]) -> None:
    runs = [added(small, changed(RUN, name=f"run {number}")) for number in range(MAX_RUNS + 1)]
    client = Client(create_app(small))
    client.get("/")
    counts = []
    for names in (runs[:MAX_RUNS], [run[:length] for length in range(12, 64) for run in runs]):
        asked.clear()
        assert client.get("/compare?" + "&".join(f"run={name}" for name in names)).status_code == 200
        counts.append(len(asked))
    assert counts[0] == counts[1]


class Crowd:
    """Sends requests at once, and counts how many are answered at the same time."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.release = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer when everybody may go on."""
        self.running += 1
        self.most = max(self.most, self.running)
        await self.release.wait()
        self.running -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def asked(self, store: Store, requests: list[tuple[str, str]], expected: int) -> list[Any]:
        """Return the messages of the answers to requests, each an address and a page."""
        cache = kept_answers.AnswerCache(self, store)
        sent: list[Any] = []

        async def one(address: str, page: str) -> None:
            scope = {"type": "http", "method": "GET", "path": page, "query_string": b"", "headers": []}
            await cache({**scope, "client": (address, 1)}, receive, send)

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        crowd = [asyncio.create_task(one(*request)) for request in requests]
        while self.running < expected:
            await asyncio.sleep(0)
        self.release.set()
        await asyncio.gather(*crowd)
        return sent


@pytest.mark.parametrize(
    ("addresses", "page", "most"),
    [
        (1, "/workloads/{}", kept_answers.OF_ADDRESS),
        (6, "/workloads/{}", kept_answers.OF_ALL),
        (6, "/workloads", 1),
        (1, "/runs/{}/files/results.json", kept_answers.OF_ADDRESS),
        (12, "/api/v1/health", 12),
    ],
)
def test_a_caller_waits_for_its_turn(small: Store, addresses: int, page: str, most: int) -> None:
    """Twelve requests at once: of one address or of several, for answers that cost time or none."""
    crowd = Crowd()
    requests = [(f"10.0.0.{number % addresses}", page.format(number)) for number in range(12)]
    sent = finished(crowd.asked(small, requests, most))
    assert crowd.most == most
    assert len(sent) == 2 * len(requests)


@pytest.mark.parametrize(("size", "who"), [(1 << 20, "slow"), ((1 << 20) + 1, "other")])
def test_a_large_answer_counts_until_it_is_sent(small: Store, size: int, who: str) -> None:
    """Two callers ask for the same page, the first of whom has two answers that it does not receive."""
    made: list[str] = []
    unsent: list[str] = []
    received = asyncio.Event()

    async def answer(scope: Scope, _receive: Receive, send: Send) -> None:
        made.append(scope["client"][0])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size})

    async def crowd() -> None:
        cache = kept_answers.AnswerCache(answer, small)

        async def one(caller: str, page: str) -> None:
            scope = {"type": "http", "method": "GET", "path": page, "query_string": b"", "headers": []}
            await cache({**scope, "client": (caller, 1)}, receive, send if caller == "slow" else receive)

        async def receive(*_: Message) -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            unsent.append(message["type"])
            await received.wait()

        waiting = [asyncio.create_task(one("slow", f"/workloads/{number}")) for number in range(2)]
        while len(unsent) < len(waiting):
            await asyncio.sleep(0)
        waiting.append(asyncio.create_task(one("slow", "/workloads/same")))
        await asyncio.create_task(one("other", "/workloads/same"))
        received.set()
        await asyncio.gather(*waiting)

    finished(crowd())
    assert made == ["slow", "slow", who]
