"""Measures a leaderboard under load, on SQLite and PostgreSQL: requests a second, latency, memory."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
import polars as pl

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "leaderboard")]

from browsers import launched  # noqa: E402
from databases import create_database, postgresql  # noqa: E402
from leaderboard_bundles import WORKLOADS, many, written  # noqa: E402
from leaderboard_rows import filled  # noqa: E402

from ccl_bench.base.text import counted  # noqa: E402
from ccl_bench.leaderboard.publishing.settings import FILE as SETTINGS  # noqa: E402
from ccl_bench.leaderboard.reported.observations import NUMBER, Reported, packaged, write_reported  # noqa: E402
from ccl_bench.leaderboard.store import Store, new_event, open_store  # noqa: E402
from ccl_bench.leaderboard.store.query import default_columns  # noqa: E402
from ccl_bench.leaderboard.store.store import CHANGES, REPORTED  # noqa: E402
from ccl_bench.leaderboard.web.server import listening, run_server  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

CONNECTIONS = 16
USUAL = (
    "/",
    "/?phase=inference&sort=TTFT",
    "/?phase=any",
    "/?phase=any&page=100",
    "/?q=hopper+h100&sort=mfu&tp=2",
    "/workloads",
    "/api/v1/runs",
    "/api/v1/runs?phase=training&sort=mfu&columns=mfu",
    *(f"/?{urlencode({'hardware': device})}" for device in ("H100", "A100-SXM4-40GB", "MI300X", "B200")),
    *(f"/?phase=training&sort=mfu&page={page}" for page in range(2, 10)),
)
"""What most readers ask for."""
NEW_EVERY = 100
"""One request of so many is a question that nobody has asked before."""


@dataclass(slots=True)
class Load:
    """What was measured."""

    seconds: float = 0.0
    usual_ms: list[float] = field(default_factory=list)
    new_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    """Processor time of the server, without that of PostgreSQL."""
    peak_bytes: int = 0

    def row(self, kind: str, runs: int) -> str:
        """Return a row of the table."""
        every = [*self.usual_ms, *self.new_ms]
        figures = (_percentile(every, 50), _percentile(every, 99), _percentile(self.new_ms, 50))
        cpu_ms = self.cpu_s / len(every) * 1e3
        cells = "".join(f"{ms:10.1f}" for ms in (*figures, max(self.new_ms), cpu_ms))
        return f"{kind:10}  {runs:7,}  {len(every) / self.seconds:10.0f}{cells}  {self.peak_bytes / 1e6:8.0f}"


PAGES = {
    "first page": "/?",
    "fifth page of a metric": "/?phase=training&sort=mfu&page=5&",
    "newest runs": "/?phase=any&",
    "narrowed to a device": "/?hardware=H100&",
}
_TIMES = 50
"""How often each is asked for, as a new question each time, and how many runs are published."""


def cpu_of_pages(server: str | None, runs: int) -> dict[str, float]:
    """Return the processor time of a server with this many runs for each of `PAGES`, not kept yet, ms.

    That of PostgreSQL is not counted.
    """
    with _filled(server, runs) as (data, database), _serving(data, database) as (port, process):
        cpu_ms = {}
        for name, address in PAGES.items():
            asyncio.run(_under_load(port, iter([(address, True)]), 1))
            before = _cpu_s(process)
            for _ in range(_TIMES):
                _forget_answers(data)
                asyncio.run(_under_load(port, iter([(address, True)]), 1))
            cpu_ms[name] = (_cpu_s(process) - before) / _TIMES * 1e3
    return cpu_ms


def cpu_of_publishing(server: str | None, runs: int, workloads: int) -> float:
    """Return the processor time of accepting a bundle into an index with this many runs and workloads, ms.

    That of PostgreSQL is not counted.
    """
    with _filled(server, runs, workloads) as (data, database):
        store = open_store(data, database)
        new = list(many(_TIMES + 1, seed=12, workloads=workloads))
        prepared = [written(run, data / f"new-{place}") for place, run in enumerate(new)]
        store.add(prepared[0], new_event(new[0].state, "Ada Lovelace"))
        before = time.process_time()
        for run, folder in zip(new[1:], prepared[1:], strict=True):
            store.add(folder, new_event(run.state, "Ada Lovelace"))
        cpu_ms = (time.process_time() - before) / _TIMES * 1e3
        store.engine.dispose()
    return cpu_ms


PUBLISHED = 300
"""Published runs of a board whose other rows were reported elsewhere."""
_OF_COPY = 2600
"""Rows that a copy of the largest source has on a board, where repeats are one row."""
_MODEL: dict[str, object] = {"model": "deepseek-ai/DeepSeek-R1"}
_LENGTHS: dict[str, object] = {**_MODEL, "input_len": 1024, "output_len": 1024}
QUESTIONS: dict[str, dict[str, object]] = {
    "first page": {},
    "phase training": {"phase": "training"},
    "phase any": {"phase": "any"},
    "model": _MODEL,
    "precision": {"precision": "fp8"},
    "batch size": {"phase": "training", "batch_size": 8},
    "input length": {"input_len": 1024},
    "output length": {"output_len": 8192},
    "hardware": {"hardware": "B200"},
    "devices": {"device_count": 8},
    "nodes": {"node_count": 1, "phase": "any"},
    "framework": {"framework": "vLLM"},
    "tp": {"tp": 8},
    "ep": {"ep": 8},
    "state": {"state": "reported"},
    "origin published": {"origin": "published"},
    "origin reported": {"origin": "reported"},
    "model, hardware": {**_MODEL, "hardware": "B200"},
    "framework, precision": {"framework": "vLLM", "precision": "fp4"},
    "search": {"q": "b200 vllm"},
    "question": {**_LENGTHS, "interactivity": 50},
    "question, cost": {**_LENGTHS, "interactivity": 50, "matters": "cost_per_million_output_tokens"},
    "question, first token": {**_LENGTHS, "matters": "TTFT"},
    **{f"sort {name}": {"sort": name} for name in default_columns()["inference"]},
    **{f"filter, sort {name}": {**_MODEL, "sort": name} for name in ("interactivity", "TTFT")},
    **{
        f"sort {name}": {"sort": name}
        for name in (
            "submitted_at",
            "model",
            "hardware",
            "device_count",
            "framework",
            "communication_library",
        )
    },
    "page 100": {"page": 100},
}
"""What a reader of such a board may ask for first."""


def reported_elsewhere(copies: int, seed: int = 7) -> Iterator[Reported]:
    """Yield the packaged rows, then copies of the largest source with other names, versions and numbers."""
    sources = packaged()
    yield from sources
    largest = max(sources, key=lambda each: each.rows.height)
    for copy in range(1, copies + 1):
        name = f"{largest.source.name}-{copy}"
        source = msgspec.structs.replace(largest.source, name=name, title=f"{largest.source.title} {copy}")
        numbers = [column for column in largest.rows.columns if column.startswith(NUMBER)]
        draw = random.Random(seed + copy)
        factor = pl.Series([draw.uniform(0.8, 1.2) for _ in range(largest.rows.height)])
        version = pl.col("framework.version") + f".post{copy}"
        yield Reported(
            source, largest.rows.with_columns(version, *(pl.col(each) * factor for each in numbers))
        )


def fill_board(store: Store, rows: int) -> None:
    """Put rows on a board, all but a few of them reported elsewhere."""
    for place, run in enumerate(many(PUBLISHED, seed=11, workloads=WORKLOADS)):
        store.add(written(run, store.data / f"new-{place}"), new_event(run.state, run.submitter))
    for reported in reported_elsewhere(rows):
        if store.count >= rows:
            return
        store.add_reported(reported)


@dataclass(frozen=True, slots=True)
class Asked:
    """Times of one question, each time asked anew: median and longest, and processor time, ms."""

    median_ms: float
    slowest_ms: float
    cpu_ms: float
    """Of the server, without PostgreSQL."""


def asked_of_board(server: str | None, rows: int, times: int = 9) -> tuple[int, dict[str, Asked], float]:
    """Return the rows of a board, the times of `QUESTIONS` for one reader, and the first paint of `/` in ms.

    No answer is kept before it is asked for; the first paint is the median of pages in a new browser.
    """
    database = create_database(server, "benchmark_board") if server else None
    with tempfile.TemporaryDirectory() as data:
        store = open_store(Path(data), database)
        (Path(data) / SETTINGS).write_text("requests_per_minute = 100_000_000\n", encoding="utf-8")
        fill_board(store, rows)
        count = store.count
        store.engine.dispose()
        with _serving(Path(data), database) as (port, process):
            paint_ms = _first_paint_ms(port, Path(data), times)
            asked = {
                name: _asked(port, process, Path(data), query, times) for name, query in QUESTIONS.items()
            }
    return count, asked, paint_ms


def _first_paint_ms(port: int, data: Path, times: int) -> float:
    from playwright.sync_api import sync_playwright

    entry = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    paints: list[float] = []
    with sync_playwright() as playwright:
        browser = launched(playwright)
        for _ in range(times):
            _forget_answers(data)
            with browser.new_context() as context:
                page = context.new_page()
                page.goto(f"http://127.0.0.1:{port}/")
                # The policy of the page forbids scripts in texts, with which a browser would wait by itself.
                while (paint_ms := page.evaluate(entry)) is None:
                    page.wait_for_timeout(20)
                paints.append(paint_ms)
        browser.close()
    return statistics.median(paints)


def replaced_source(rows: int) -> tuple[int, float, int]:
    """Return rows of a board of one source, seconds to replace them all, and peak bytes of the process."""
    start = multiprocessing.get_context("spawn")
    ours, child_pipe = start.Pipe()
    process = start.Process(target=_replace_source, args=(rows, child_pipe))
    process.start()
    figures: tuple[int, float, int] = ours.recv()
    process.join()
    return figures


def _replace_source(rows: int, pipe: Connection) -> None:
    first, *copies = (each for each in reported_elsewhere(rows // _OF_COPY) if len(each.source.numbers) == 2)
    together = pl.concat([each.rows for each in (first, *copies)])
    numbers = [column for column in together.columns if column.startswith(NUMBER)]
    with tempfile.TemporaryDirectory() as data:
        store = open_store(Path(data), None)
        store.add_reported(Reported(first.source, together))
        changed = together.with_columns(pl.col(numbers) * 1.01)
        write_reported(
            Path(data) / REPORTED / f"{first.source.name}.parquet", Reported(first.source, changed)
        )
        begin = time.perf_counter()
        store.catch_up()
        pipe.send((store.count, time.perf_counter() - begin, _peak_bytes(os.getpid())))


def _asked(port: int, process: int, data: Path, query: dict[str, object], times: int) -> Asked:
    before, load = _cpu_s(process), Load()
    for _ in range(times):
        _forget_answers(data)
        load.new_ms += asyncio.run(_under_load(port, iter([(f"/?{urlencode(query)}", True)]), 1)).new_ms
    cpu_ms = (_cpu_s(process) - before) / times * 1e3
    return Asked(statistics.median(load.new_ms), max(load.new_ms), cpu_ms)


def _forget_answers(data: Path) -> None:
    """Have the server make its answers anew, as after a change of the index."""
    with (data / CHANGES).open("ab") as stream:
        stream.write(b".")


HEAD = "                rows  requests/s    p50 ms    p99 ms     new, ms   slowest    CPU ms   peak MB"


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


@contextlib.contextmanager
def databases() -> Iterator[dict[str, str | None]]:
    """Give the server of each kind of database; PostgreSQL only if it is installed."""
    from _pytest.outcomes import Skipped

    with contextlib.ExitStack() as stack:
        servers: dict[str, str | None] = {"SQLite": None}
        try:
            servers["PostgreSQL"] = stack.enter_context(postgresql())
        except Skipped as reason:
            print(f"without PostgreSQL: {reason}", file=sys.stderr)
        yield servers


def measured(server: str | None, runs: int, requests: int) -> Load:
    """Fill a leaderboard with runs, serve it from a separate process, and put it under load."""
    with _served(server, runs) as (port, process):
        load = asyncio.run(_under_load(port, _questions(requests)))
        load.cpu_s = _cpu_s(process)
        load.peak_bytes = _peak_bytes(process)
    return load


@contextlib.contextmanager
def _filled(server: str | None, runs: int, workloads: int = WORKLOADS) -> Iterator[tuple[Path, str | None]]:
    """Give the folder and the database of a leaderboard with runs that have no files."""
    database = create_database(server, f"benchmark_{runs}") if server else None
    with tempfile.TemporaryDirectory() as data:
        store = open_store(Path(data), database)
        (Path(data) / SETTINGS).write_text("requests_per_minute = 100_000_000\n", encoding="utf-8")
        filled(store, runs, workloads=workloads)
        store.engine.dispose()
        yield Path(data), database


@contextlib.contextmanager
def _served(server: str | None, runs: int) -> Iterator[tuple[int, int]]:
    """Give port and process of a server of a leaderboard with runs."""
    with _filled(server, runs) as (data, database), _serving(data, database) as served:
        yield served


@contextlib.contextmanager
def _serving(data: Path, database: str | None) -> Iterator[tuple[int, int]]:
    """Give port and process of a server of a leaderboard."""
    start = multiprocessing.get_context("spawn")
    ours, child_pipe = start.Pipe()
    process = start.Process(target=_serve, args=(str(data), database, child_pipe))
    process.start()
    try:
        yield ours.recv(), process.pid or 0
    finally:
        process.terminate()
        process.join()


def _serve(data: str, database: str | None, pipe: Connection) -> None:
    """Serve as `ccl-bench serve` does, without looking for the files of the runs: these have none."""
    store = open_store(Path(data), database)
    with listening("127.0.0.1", 0) as (listener, _):
        pipe.send(listener.getsockname()[1])
        run_server(store, listener)


def _peak_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _questions(count: int) -> Iterator[tuple[str, bool]]:
    """Yield addresses, and whether each is a new query."""
    draw = random.Random(5)
    narrowed = list(product((1, 2, 4, 8), (1, 2), (8, 16, 32, 64), ("mfu", "gpu_busy"), ("any", "training")))
    draw.shuffle(narrowed)
    for number in range(count):
        if number % NEW_EVERY:
            yield draw.choice(USUAL), False
            continue
        tp, pp, devices, sort, phase = narrowed[number // NEW_EVERY % len(narrowed)]
        query = {"tp": tp, "pp": pp, "device_count": devices, "sort": sort, "phase": phase}
        yield f"/?{urlencode(query | {'q': f'run-{number:05d}'[: draw.randrange(4, 7)]})}&n={number}", True


async def _under_load(
    port: int, questions: Iterator[tuple[str, bool]], connections: int = CONNECTIONS
) -> Load:
    load = Load()
    begin = time.perf_counter()
    await asyncio.gather(*(_reader(port, questions, load) for _ in range(connections)))
    load.seconds = time.perf_counter() - begin
    return load


async def _reader(port: int, questions: Iterator[tuple[str, bool]], load: Load) -> None:
    """Ask one question after another over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    for address, is_new in questions:
        begin = time.perf_counter()
        writer.write(f"GET {address} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"{address}: {head.decode()}")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        times = load.new_ms if is_new else load.usual_ms
        times.append((time.perf_counter() - begin) * 1e3)
    writer.close()


def growth(server: str | None) -> dict[str, float]:
    """Return the processor time of pages and of publications, ms, by name."""
    cpu_ms = {f"{name} at 100,000 runs": ms for name, ms in cpu_of_pages(server, 100_000).items()}
    for workloads in (WORKLOADS, 1):
        what = f"publish into 10,000 runs of {counted(workloads, 'workload')}"
        cpu_ms[what] = cpu_of_publishing(server, 10_000, workloads)
    return cpu_ms


def print_board(rows: int) -> None:
    """Print what each question costs on each kind of database, first paints, and the import of a source."""
    columns = []
    with databases() as servers:
        for kind, server in servers.items():
            count, asked, paint_ms = asked_of_board(server, rows)
            print(f"{kind}: {count:,} rows, first paint of / after {paint_ms:.0f} ms", flush=True)
            columns.append(asked)
        print(f"{'':34}" + "".join(f"{kind:>10} {'slowest':>8} {'CPU ms':>7}" for kind in servers))
    for name in QUESTIONS:
        cells = (
            f"{each[name].median_ms:10.0f} {each[name].slowest_ms:8.0f} {each[name].cpu_ms:7.0f}"
            for each in columns
        )
        print(f"{name:34}" + "".join(cells))
    count, seconds, peak = replaced_source(rows)
    print(f"a source of {count:,} rows is replaced in {seconds:.0f} s, with {peak / 1e6:.0f} MB at most")


def main() -> None:
    """Print a row for each database and number of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="*", default=[5_000, 50_000], help="runs in the index")
    parser.add_argument(
        "--growth", action="store_true", help="only print what one page and one run cost, of SQLite"
    )
    parser.add_argument(
        "--board", type=int, metavar="ROWS", help="only print how fast a board of rows reported elsewhere is"
    )
    parser.add_argument("--requests", type=int, default=20_000, help="requests (default: 20000)")
    options = parser.parse_args()
    if options.growth:
        for what, ms in growth(None).items():
            print(f"{what}: {ms:.1f} ms", flush=True)
        return
    if options.board:
        print_board(options.board)
        return
    print(f"{options.requests:,} requests over {CONNECTIONS} connections, one of {NEW_EVERY} a new question")
    print(HEAD)
    with databases() as servers:
        for (kind, server), runs in product(servers.items(), options.runs):
            print(measured(server, runs, options.requests).row(kind, runs), flush=True)


if __name__ == "__main__":
    main()
