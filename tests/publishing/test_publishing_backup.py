"""A copy made while somebody publishes has every run that was there before, and passes the audit."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
from commands import invoke, ran
from databases import create_database
from publishing_archives import another, archive
from publishing_server import whole_board

from ccl_bench.leaderboard.bundle.format import bundle_id
from ccl_bench.leaderboard.bundle.origin import new_key
from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.leaderboard.publishing.audit import audit_store
from ccl_bench.leaderboard.publishing.moderation import OPERATOR, withdraw
from ccl_bench.leaderboard.publishing.publications import reconcile
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.publishing.tokens import authenticate
from ccl_bench.leaderboard.reported.observations import packaged, read_reported
from ccl_bench.leaderboard.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from publishing_archives import Files
    from publishing_server import Leaderboard


class Writer:
    """Somebody who publishes and withdraws one run after the other until told to stop."""

    def __init__(self, board: Leaderboard, bundle: Files) -> None:
        self.board, self.bundle = board, bundle
        self.accepted: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        number = 0
        token = self.board.token("writer")
        while not self._stop.is_set():
            number += 1
            answer = self.board.sent(archive(another(self.bundle, f"written {number}")), token)
            assert answer.status_code == 201, answer.text
            self.accepted.append(answer.json()["id"])
            withdraw(self.board.store, OPERATOR, self.accepted[-1], "once more")

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _check_restored(data: Path, database: str | None, head: str, runs: set[str], token: str) -> None:
    """Index a restored directory, and find everything in it as it was."""
    more = ["--database", database] if database else []
    call = ran if database else invoke  # a process leaves its connections of PostgreSQL to its end
    indexed = call(["ccl-bench", "board", "index", str(data), *more])
    assert indexed.returncode == 0, indexed.stderr
    audited = call(["ccl-bench", "board", "audit", str(data), "--head", head, *more])
    assert audited.returncode == 0, audited.stderr
    store = open_store(data, database)
    reconcile(store, Settings())  # as the next start does
    whole_board(store)
    found = {path.name for path in store.folder.iterdir()}
    assert runs <= found
    assert all(bundle_id(store.folder / run) == run for run in found)
    assert (audit_store(store).runs, store.refused) == (len(found), {})
    caller = authenticate(store.engine, token)
    assert caller is not None
    assert caller.submitter == "ada"
    assert len(tokens.list_keys(store.engine)) == 1
    store.engine.dispose()


def _published_before(board: Leaderboard, whole: Files) -> tuple[str, str, str]:
    """Publish a run with its traces, and return it, the token, and the head of the log."""
    token = board.token("ada")
    tokens.register_key(board.store.engine, "ada", new_key().public)
    run = board.sent(archive(whole), token).json()["id"]
    head = audit_store(board.store).head
    assert head is not None
    return run, token, head


def test_a_copy_of_a_directory_in_which_somebody_writes_is_whole(
    opened: Callable[..., Leaderboard], whole: Files, bundle: Files, tmp_path: Path
) -> None:
    board = opened('quarantine = "none"')
    run, token, head = _published_before(board, whole)
    with Writer(board, bundle) as writer:
        for number, call in enumerate((invoke, ran)):
            before = {run, *writer.accepted}
            copied = call(
                ["ccl-bench", "board", "backup", str(board.data), "-o", str(tmp_path / f"copy-{number}")]
            )
            assert copied.returncode == 0, copied.stderr
    copy = tmp_path / "copy-1"
    assert (copy / "publishing.toml").read_text(encoding="utf-8") == 'quarantine = "none"'
    assert sorted(path.name for path in (copy / "traces" / run).iterdir()) == sorted(
        name.removeprefix("run/") for name in whole if name.startswith("run/")
    )
    shutil.rmtree(board.data)
    _check_restored(copy, None, head, before, token)


def test_a_copy_has_the_rows_that_others_reported(opened: Callable[..., Leaderboard], tmp_path: Path) -> None:
    board = opened()
    reported = packaged()[1]
    assert board.store.add_reported(reported) == reported.rows.height == 102
    assert (
        invoke(["ccl-bench", "board", "backup", str(board.data), "-o", str(tmp_path / "copy")]).returncode
        == 0
    )
    copied = tmp_path / "copy" / "reported" / "ccl-bench-2026.parquet"
    assert read_reported(copied).rows.equals(reported.rows)


def test_a_copy_replaces_nothing(opened: Callable[..., Leaderboard], tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    done = invoke(["ccl-bench", "board", "backup", str(opened().data), "-o", str(tmp_path / "copy")])
    assert (done.returncode, "already exists" in done.stderr) == (4, True)


def test_a_dump_of_postgresql_and_a_copy_give_the_board_in_an_empty_place(
    opened: Callable[..., Leaderboard],
    whole: Files,
    bundle: Files,
    postgresql_server: str,
    tmp_path: Path,
) -> None:
    """As the manual says: the database first, then the files."""
    address = create_database(postgresql_server, "backed_up")
    board = opened(database=address)
    run, token, head = _published_before(board, whole)
    dump, copy = tmp_path / "board.dump", tmp_path / "copy"
    with Writer(board, bundle) as writer:
        before = {run, *writer.accepted}
        _program("pg_dump", "-Fc", "-f", dump, _plain(address))
        copied = ran(
            ["ccl-bench", "board", "backup", str(board.data), "-o", str(copy), "--database", address]
        )
        assert copied.returncode == 0, copied.stderr
    restored = create_database(postgresql_server, "restored")
    _program("pg_restore", "-d", _plain(restored), dump)
    assert not (copy / "index.sqlite").exists()
    _check_restored(copy, restored, head, before, token)


def _plain(address: str) -> str:
    return address.replace("postgresql+psycopg://", "postgresql://")


def _program(*command: str | Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip("PostgreSQL's programs are not on the path: make services")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
