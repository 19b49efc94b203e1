"""Measures how long the leaderboard takes to answer, on SQLite and on PostgreSQL, over HTTP."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "leaderboard")]

from databases import create_database, postgresql  # noqa: E402
from leaderboard_rows import filled  # noqa: E402
from web_server import served  # noqa: E402

from ccl_bench.leaderboard.store import open_store  # noqa: E402
from ccl_bench.leaderboard.web.app import create_app  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_MS = 200.0
ADDRESSES = {
    "the first page, filters counted": "/",
    "searched, filtered, sorted": "/?q=hopper+h100&sort=mfu&tp=2",
    "another phase": "/?phase=inference&sort=TTFT",
    "the last page of all runs": "/?phase=any&page=100",
    "the same as JSON": "/api/v1/runs?phase=training&sort=mfu&columns=mfu",
}


@contextlib.contextmanager
def databases() -> Iterator[dict[str, str | None]]:
    """Give a database of each kind; PostgreSQL only where it is installed."""
    from _pytest.outcomes import Skipped

    with contextlib.ExitStack() as stack:
        found: dict[str, str | None] = {"SQLite": None}
        try:
            found["PostgreSQL"] = create_database(stack.enter_context(postgresql()), "benchmark")
        except Skipped as reason:
            print(f"without PostgreSQL: {reason}", file=sys.stderr)
        yield found


def times_ms(database: str | None, runs: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the times of each answer, with that many runs, by the clock and of the processor, in ms."""
    with tempfile.TemporaryDirectory() as data:
        store = open_store(Path(data), database)
        filled(store, runs)
        with served(create_app(store)) as address, httpx.Client(base_url=address, timeout=60) as client:
            found = {
                name: [_once(client, each) for _ in range(rounds)][1:] for name, each in ADDRESSES.items()
            }
        store.engine.dispose()
    return found


def _once(client: httpx.Client, address: str) -> tuple[float, float]:
    begin, busy = time.perf_counter(), time.process_time()
    client.get(address).raise_for_status()
    return (time.perf_counter() - begin) * 1e3, (time.process_time() - busy) * 1e3


def main() -> None:
    """Print the median and the shortest time of each answer, and the median over the limit.

    On a machine that is busy with something else, CPU time is more meaningful; it is that of client
    and server, without the database's own.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5_000, help="runs in the index (default: 5000)")
    parser.add_argument("--rounds", type=int, default=16, help="answers of each kind, the first not counted")
    asked = parser.parse_args()
    print(f"{asked.runs:,} runs; the limit is {LIMIT_MS:.0f} ms")
    with databases() as found:
        for kind, database in found.items():
            for name, times in times_ms(database, asked.runs, asked.rounds).items():
                clock, processor = zip(*times, strict=True)
                middle = statistics.median(clock)
                print(
                    f"{kind:10}  {name:32}  {middle:4.0f} ms  {middle / LIMIT_MS:.2f} x the limit"
                    f"  (shortest {min(clock):.0f} ms, processor {statistics.median(processor):.0f} ms)"
                )


if __name__ == "__main__":
    main()
