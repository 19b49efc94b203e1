"""What publishes, moderates or stores is killed at any point: afterwards all of it happened, or none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import ROOT
from databases import create_database, is_running, kill_backends, kill_server, start_server
from forked_programs import Forked
from killed_midway import act, interrupt, publish
from publishing_archives import archive
from publishing_server import SERVING, Leaderboard, wait_for, whole_board

from ccl_bench.leaderboard.publishing.publications import reconcile
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from publishing_archives import Files

    from ccl_bench.leaderboard.store import Store

PROGRAM = Path(__file__).resolve().parent / "killed_midway.py"
KILLS = [
    ("publish", "the history was written", "self_reported"),
    ("publish", "the log was written", "self_reported"),
    ("publish", "the run was indexed", "self_reported"),
    ("publish", "the job was queued", "self_reported"),
    ("withdraw", "the history was written", "withdrawn"),
    ("withdraw", "the rows were written", "withdrawn"),
    ("approve", "the history was written", "self_reported"),
    ("approve", "the run was listed", "self_reported"),
]
"""Action, point, and the state of the run when the action was done."""


@pytest.fixture
def killable(postgresql_server: str, with_tables: str) -> Iterator[str]:
    """Return the address of a database whose server may be killed; it runs again afterwards."""
    yield create_database(postgresql_server, f"killed_{uuid.uuid4().hex}", with_tables)
    if not is_running(postgresql_server):
        start_server(postgresql_server)


@pytest.fixture
def sent(whole: Files, tmp_path: Path) -> Path:
    """Return an archive of the run with its traces."""
    path = tmp_path / "sent.tar.gz"
    path.write_bytes(archive(whole))
    return path


@pytest.fixture
def mended(whole: Files, tmp_path: Path) -> Path:
    """Return an archive of the same recording with another card."""
    path = tmp_path / "mended.tar.gz"
    path.write_bytes(archive({**whole, "workload_card.yaml": whole["workload_card.yaml"] + b"# mended\n"}))
    return path


def _prepared(store: Store, action: str, sent: Path, mended: Path) -> str:
    """Make a board on which an action can happen, and return what it is done to.

    What is approved replaces another run.
    """
    if action == "publish":
        return str(sent)
    run = publish(store, sent)
    return publish(store, mended, quarantine="all") if action == "approve" else run


@pytest.mark.parametrize(
    ("database", "action", "point", "state"),
    [
        *(("sqlite", *kill) for kill in KILLS),
        *(("postgresql", *kill) for kill in KILLS if "written" in kill[1]),
    ],
    indirect=["database"],
)
def test_a_process_that_is_killed_midway_leaves_a_board_that_the_next_one_completes(
    unserved: Leaderboard, sent: Path, mended: Path, action: str, point: str, state: str
) -> None:
    store = unserved.store
    what = _prepared(store, action, sent, mended)
    store.catch_up()
    words = [PROGRAM, unserved.data, unserved.database or "", action, what, point]
    with Path(os.devnull).open("r+b") as nothing, (unserved.data / "log").open("w+b") as errors:
        died = Forked(words, (nothing, nothing, errors), ROOT, dict(os.environ), SERVING).wait()
        errors.seek(0)
        assert died == -signal.SIGKILL, errors.read()
    # A server that runs meanwhile looks again, and so does every process that starts.
    for each in (store, open_store(unserved.data, unserved.database)):
        reconcile(each, Settings())
        whole_board(each)
    act(each, action, what)
    whole_board(each)
    run = next(each.folder.iterdir()).name if action == "publish" else what
    assert each.bundle(run).history[-1].state == state
    each.engine.dispose()


@pytest.mark.parametrize(("action", "point", "state"), KILLS[1::2] + KILLS[4:7:2])
def test_a_postgresql_that_is_killed_midway_is_found_again_by_the_server_that_still_runs(
    opened: Callable[..., Leaderboard],
    killable: str,
    sent: Path,
    mended: Path,
    action: str,
    point: str,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same server answers 503, then does what it is asked for again; nobody starts it anew."""
    board = opened(database=killable)
    ada, mae = board.token("ada"), board.token("mae", Role.MAINTAINER)
    what = _prepared(board.store, action, sent, mended)

    def ask() -> int:
        if action == "publish":
            return board.sent(sent.read_bytes(), ada).status_code
        return board.asked(
            "POST", f"bundles/{what}/{action}", ada if action == "withdraw" else mae
        ).status_code

    interrupt(point, lambda: kill_server(killable), monkeypatch.setattr)
    assert ask() == 503
    assert board.asked("GET", "health").status_code == 503
    start_server(killable)
    assert board.asked("GET", "health").status_code == 200
    reported = {run["id"]: run["state"] for run in board.runs()}
    assert reported == {
        run: each[-1] for run, each in board.states().items() if each[-1] in {"self_reported"}
    }
    assert ask() in {200, 201}
    whole_board(board.store)
    run = next(board.store.folder.iterdir()).name if action == "publish" else what
    assert board.states()[run][-1] == state


def test_a_backend_that_is_killed_costs_one_request_and_no_restart(
    opened: Callable[..., Leaderboard], killable: str, sent: Path
) -> None:
    """PostgreSQL then ends every connection, also the idle ones in the pool, and recovers."""
    board = opened(database=killable)
    token = board.token("ada")
    assert board.sent(sent.read_bytes(), token).status_code == 201
    kill_backends(killable)
    wait_for(lambda: board.asked("GET", "health").status_code == 200)
    assert board.sent(sent.read_bytes(), token).status_code == 200
    whole_board(board.store)


def test_a_worker_that_finds_no_database_says_so_in_the_log_and_ends(tmp_path: Path) -> None:
    """The server starts it again and again, as long as the database is away."""
    config = {"data": str(tmp_path), "database": f"postgresql://ada@/none?host={tmp_path}", "parent": 1}
    command = [sys.executable, "-m", "ccl_bench.leaderboard.publishing.worker"]
    done = subprocess.run(
        command, input=json.dumps(config), text=True, capture_output=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (4, "")
    (line,) = (tmp_path / "publishing.log").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["event"] == "database-failed"
