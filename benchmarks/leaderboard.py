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

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "leaderboard")]

from databases import create_database, postgresql  # noqa: E402
from leaderboard_rows import filled  # noqa: E402

from ccl_bench.leaderboard.publishing.settings import FILE as SETTINGS  # noqa: E402
from ccl_bench.leaderboard.store import open_store  # noqa: E402
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
        shown = "".join(f"{ms:10.1f}" for ms in (*figures, max(self.new_ms), cpu_ms))
        return f"{kind:10}  {runs:7,}  {len(every) / self.seconds:10.0f}{shown}  {self.peak_bytes / 1e6:8.0f}"


HEAD = "                rows  requests/s    p50 ms    p99 ms     new, ms   slowest    CPU ms   peak MB"


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


@contextlib.contextmanager
def databases() -> Iterator[dict[str, str | None]]:
    """Give the server of each kind of database; PostgreSQL only where it is installed."""
    from _pytest.outcomes import Skipped

    with contextlib.ExitStack() as stack:
        found: dict[str, str | None] = {"SQLite": None}
        try:
            found["PostgreSQL"] = stack.enter_context(postgresql())
        except Skipped as reason:
            print(f"without PostgreSQL: {reason}", file=sys.stderr)
        yield found


def measured(server: str | None, runs: int, requests: int) -> Load:
    """Fill a leaderboard with runs, serve it from a process of its own, and put it under load."""
    database = create_database(server, f"benchmark_{runs}") if server else None
    with tempfile.TemporaryDirectory() as data:
        store = open_store(Path(data), database)
        (Path(data) / SETTINGS).write_text("requests_per_minute = 100_000_000\n", encoding="utf-8")
        filled(store, runs)
        store.engine.dispose()
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(data, database, theirs))
        process.start()
        try:
            found = asyncio.run(_under_load(ours.recv(), _questions(requests)))
            found.cpu_s = _cpu_s(process.pid or 0)
            found.peak_bytes = _peak_bytes(process.pid or 0)
        finally:
            process.terminate()
            process.join()
    return found


def _serve(data: str, database: str | None, said: Connection) -> None:
    """Serve as `ccl-bench serve` does, without looking for the files of the runs: these have none."""
    store = open_store(Path(data), database)
    with listening("127.0.0.1", 0) as (listener, _):
        said.send(listener.getsockname()[1])
        run_server(store, listener)


def _peak_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _questions(count: int) -> Iterator[tuple[str, bool]]:
    """Yield addresses, and whether each is a new question."""
    draw = random.Random(5)
    narrowed = list(product((1, 2, 4, 8), (1, 2), (8, 16, 32, 64), ("mfu", "gpu_busy"), ("any", "training")))
    draw.shuffle(narrowed)
    for number in range(count):
        if number % NEW_EVERY:
            yield draw.choice(USUAL), False
            continue
        tp, pp, devices, sort, phase = narrowed[number // NEW_EVERY % len(narrowed)]
        asked = {"tp": tp, "pp": pp, "device_count": devices, "sort": sort, "phase": phase}
        yield f"/?{urlencode(asked | {'q': f'run-{number:05d}'[: draw.randrange(4, 7)]})}&n={number}", True


async def _under_load(port: int, questions: Iterator[tuple[str, bool]]) -> Load:
    found = Load()
    begin = time.perf_counter()
    await asyncio.gather(*(_reader(port, questions, found) for _ in range(CONNECTIONS)))
    found.seconds = time.perf_counter() - begin
    return found


async def _reader(port: int, questions: Iterator[tuple[str, bool]], found: Load) -> None:
    """Ask one question after another over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    for address, is_new in questions:
        begin = time.perf_counter()
        writer.write(f"GET {address} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"{address}: {head.decode()}")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        times = found.new_ms if is_new else found.usual_ms
        times.append((time.perf_counter() - begin) * 1e3)
    writer.close()


def main() -> None:
    """Print a row for each database and number of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="*", default=[5_000, 50_000], help="runs in the index")
    parser.add_argument("--requests", type=int, default=20_000, help="requests (default: 20000)")
    asked = parser.parse_args()
    print(f"{asked.requests:,} requests over {CONNECTIONS} connections, one of {NEW_EVERY} a new question")
    print(HEAD)
    with databases() as found:
        for (kind, server), runs in product(found.items(), asked.runs):
            print(measured(server, runs, asked.requests).row(kind, runs), flush=True)


if __name__ == "__main__":
    main()
