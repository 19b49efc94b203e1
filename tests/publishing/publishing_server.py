"""A leaderboard, served by `ccl-bench serve` or by this process, and those who call it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import httpx
from commands import ROOT, invoke
from forked_programs import MEASURING, Forked
from sqlalchemy import select
from web_server import served

from ccl_bench.leaderboard.bundle.format import LISTED
from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.leaderboard.publishing.audit import audit_store
from ccl_bench.leaderboard.publishing.publications import reconcile
from ccl_bench.leaderboard.publishing.settings import load_settings
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.store import open_store
from ccl_bench.leaderboard.store.database import FILE
from ccl_bench.leaderboard.store.tables import PUBLICATIONS, RUNS
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from ccl_bench.leaderboard.store import State, Store

PROGRAM = Path(sys.executable).parent / "ccl-bench"
PATIENCE_S = 120.0
SERVING = (*MEASURING, "ccl_bench.leaderboard.web.app", "ccl_bench.leaderboard.web.server")
"""What a server imports."""
CALLS = httpx.Client(
    verify=False,  # certificates take longer to load than a call takes
    limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),  # servers come and go
    follow_redirects=True,
    timeout=PATIENCE_S,
)


@dataclass
class Leaderboard:
    """A data directory, and the server on it."""

    data: Path
    database: str | None = None
    workers: int = 0
    address: str = ""
    options: tuple[str, ...] = ()
    """Further options of the command."""
    store: Store = field(init=False)
    _server: Forked | None = None
    _printed: IO[bytes] = field(default_factory=io.BytesIO)
    _here: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        if self.database is None and not (self.data / FILE).exists():
            (self.data / FILE).write_bytes(_empty_index())
        self.store = open_store(self.data, self.database, create=True)

    def start(self, **environment: str) -> None:
        """Start the server as a process, on the port that it had before."""
        port = self.address.rpartition(":")[2].rstrip("/") or "0"
        command = [PROGRAM, "serve", self.data, "--port", port, "--workers", str(self.workers)]
        command += self.options
        command += ["--database", self.database] if self.database else []
        reader, writer = os.pipe()
        self._printed = os.fdopen(reader, "rb")
        with (
            Path(os.devnull).open("rb") as nothing,
            os.fdopen(writer, "wb") as out,
            (self.data / "serve.log").open("ab") as log,
        ):
            variables = {**os.environ, **environment}
            self._server = Forked(command, (nothing, out, log), ROOT, variables, SERVING)
        self.address = self._printed.readline().decode().strip().rstrip("/")
        assert self.address, self.reported

    def serve(self) -> None:
        """Serve it from this process, on any port, as the command does but for its workers."""
        self.store.catch_up()
        reconcile(self.store, load_settings(self.data))
        self.address = self._here.enter_context(served(create_app(self.store)))

    def work(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Do what a worker does until there is nothing to do, and return the outcome."""
        command = ["ccl-bench", "board", "worker", str(self.data), "--until-empty"]
        return invoke([*command, *(["--database", self.database] if self.database else [])], **environment)

    def kill(self) -> None:
        """Kill the server as a machine that loses its power does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop serving."""
        self._here.close()
        self._end(signal.SIGTERM)

    def close(self) -> None:
        """Leave nothing running."""
        self.stop()
        self.store.engine.dispose()

    def _end(self, how: signal.Signals) -> None:
        if self._server is None:
            return
        self._server.send_signal(how)
        self._server.wait(PATIENCE_S)
        self._printed.close()
        self._server = None

    @property
    def process(self) -> int:
        """Number of the server's process."""
        assert self._server is not None
        return self._server.pid

    @property
    def reported(self) -> str:
        """What the server wrote on stderr."""
        return (self.data / "serve.log").read_text(encoding="utf-8")

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log of publishing."""
        path = self.data / "publishing.log"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def token(self, submitter: str, role: Role = Role.SUBMITTER) -> str:
        """Return a new token."""
        return tokens.create_token(self.store.engine, submitter, role)

    def asked(self, method: str, path: str, token: str | None = None, **how: Any) -> httpx.Response:
        """Return the answer to a call of the interface."""
        headers = how.pop("headers", {}) | ({"authorization": f"Bearer {token}"} if token else {})
        return CALLS.request(method, f"{self.address}/api/v1/{path}", headers=headers, **how)

    def sent(self, archive: bytes | Iterator[bytes], token: str | None) -> httpx.Response:
        """Return the answer to an archive."""
        headers = {"content-type": "application/gzip"}
        return self.asked("POST", "bundles", token, content=archive, headers=headers)

    def page(self, path: str) -> httpx.Response:
        """Return a page as a browser gets it."""
        return CALLS.get(f"{self.address}/{path}")

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs of the table."""
        found = self.asked("GET", "runs?size=100")
        assert found.status_code == 200, found.text
        return found.json()["runs"]

    def states(self) -> dict[str, list[str]]:
        """Return the states that each run on disk went through."""
        return {
            path.parent.name: [event["state"] for event in json.loads(path.read_bytes())]
            for path in (self.data / "runs").glob("*/history.json")
        }


@cache
def _empty_index() -> bytes:
    """Return an index whose tables are there: making them takes longest."""
    with tempfile.TemporaryDirectory() as place:
        open_store(place, create=True).engine.dispose()
        return (Path(place) / FILE).read_bytes()


def whole_board(store: Store) -> dict[str, list[State]]:
    """Check that files, rows, log and owners agree and each recording is listed once; return the states."""
    assert audit_store(store).problems == []
    states = {run: [event.state for event in store.bundle(run).history] for run in store.folders()}
    with store.engine.connect() as connection:
        rows = connection.execute(select(RUNS.c.id, RUNS.c.state, RUNS.c.is_listed)).all()
        owned = connection.execute(select(PUBLICATIONS.c.run, PUBLICATIONS.c.recording)).all()
    assert {run: (state, is_listed) for run, state, is_listed in rows} == {
        run: (each[-1].value, int(each[-1] in LISTED)) for run, each in states.items()
    }
    assert sorted(run for run, _ in owned) == sorted(states)
    listed = [recording for run, recording in owned if states[run][-1] in LISTED]
    assert len(set(listed)) == len(listed), "a recording is listed twice"
    return states


def children(process: int) -> list[int]:
    """Return the processes that a process, in any of its threads, has started."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += map(int, path.read_text(encoding="utf-8").split())
    return found


def killed(process: int) -> None:
    """Kill a process as a machine that runs out of memory does."""
    os.kill(process, signal.SIGKILL)


def wait_for(holds: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
