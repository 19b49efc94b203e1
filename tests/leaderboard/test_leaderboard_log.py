"""The log has every change of every run, and an audit finds whatever was changed behind its back."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from commands import invoke
from databases import create_database
from leaderboard_bundles import Made, added, placed
from sqlalchemy import delete, func, insert, select, text, update

from ccl_bench.leaderboard.bundle.format import read_history, write_history
from ccl_bench.leaderboard.publishing.audit import audit_store
from ccl_bench.leaderboard.store import State, Store, new_event, open_store, store, writing
from ccl_bench.leaderboard.store.log import START, entries, last_entry, log_changes
from ccl_bench.leaderboard.store.tables import LOG, RUNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MADE = [Made(name=name, values={"mfu": value}) for name, value in (("a", 50.0), ("b", 40.0), ("c", 30.0))]


TEMPLATE = "log"
"""The database of the board that others are copied from."""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Return the address of the server of databases, None for those in data directories."""
    found: str = request.getfixturevalue("postgresql_server") if request.param == "postgresql" else ""
    return found or None


@pytest.fixture(scope="module")
def whole(server: str | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data of a board with three runs, the first of which was withdrawn, to be copied."""
    data = tmp_path_factory.mktemp("whole") / "data"
    made = open_store(data, create_database(server, TEMPLATE) if server else None, create=True)
    runs = [added(made, each) for each in MADE]
    made.record(runs[0], new_event(State.WITHDRAWN, "ada", "wrong clock"))
    made.engine.dispose()
    return data


@pytest.fixture
def database(server: str | None, whole: Path) -> str | None:
    """Return the address of a database that is that of the board, None for the one in its data."""
    return create_database(server, f"log_{uuid.uuid4().hex}", TEMPLATE) if server and whole else None


@pytest.fixture
def board(tmp_path: Path, whole: Path, database: str | None) -> Iterator[Store]:
    """Return a board of one's own with these runs, on either database."""
    made = open_store(shutil.copytree(whole, tmp_path / "data"), database)
    yield made
    made.engine.dispose()


def _runs(board: Store) -> list[str]:
    """Return the runs in the order in which they were accepted."""
    with board.engine.connect() as connection:
        return list(dict.fromkeys(entry.run for entry in entries(connection)))


def _problems(board: Store, head: str | None = None) -> list[str]:
    return [problem.message for problem in audit_store(board, head=head).problems]


def test_every_change_has_an_entry_and_the_audit_agrees(board: Store) -> None:
    first, *others = _runs(board)
    found = audit_store(board)
    assert (found.entries, found.runs, found.problems) == (4, 3, [])
    shutil.rmtree(board.folder / others[0])
    placed(board.data, [Made(name="copied", values={"mfu": 1.0})])
    board.catch_up()
    with board.engine.connect() as connection:
        changes = [(entry.run, entry.state) for entry in entries(connection)]
    copied = changes[-1][0] if changes[-1][1] != "removed" else changes[-2][0]
    assert sorted(changes[4:]) == sorted([(others[0], "removed"), (copied, "self_reported")])
    assert changes[3] == (first, "withdrawn")
    assert audit_store(board).problems == []


def test_the_index_made_anew_adds_nothing(board: Store) -> None:
    before = audit_store(board).head
    board.rebuild()
    board.catch_up()
    assert audit_store(board).head == before


def test_the_hash_of_an_entry_is_that_of_its_fields_as_the_manual_says(board: Store) -> None:
    previous = START
    with board.engine.connect() as connection:
        for row in connection.execute(select(LOG).order_by(LOG.c.number)).mappings():
            fields = {name: value for name, value in row.items() if name != "hash"}
            plain = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            assert fields["previous"] == previous
            previous = row["hash"]
            assert hashlib.sha256(plain.encode()).hexdigest() == previous


CHANGES = {
    "run": "f" * 64,
    "state": "verified",
    "at": "2020-01-01T00:00:00Z",
    "by": "eve",
    "note": "right clock",
    "superseded_by": "f" * 64,
    "key": "0123456789ABCDEF",
    "logged_at": "2020-01-01T00:00:00.000000Z",
}


@pytest.mark.parametrize("column", CHANGES)
def test_a_changed_entry_is_found(board: Store, column: str) -> None:
    with writing(board.engine) as connection:
        connection.execute(update(LOG).where(LOG.c.number == 2).values({column: CHANGES[column]}))
    found = audit_store(board).problems
    assert ("entry 2", "it was changed: its hash differs") in [(each.where, each.message) for each in found]


def test_a_changed_entry_with_a_new_hash_breaks_the_chain(board: Store) -> None:
    with board.engine.connect() as connection:
        old = list(entries(connection))[1]
    with writing(board.engine) as connection:
        connection.execute(update(LOG).where(LOG.c.number == 2).values(by="eve"))
    with board.engine.connect() as connection:
        new = list(entries(connection))[1]
    with writing(board.engine) as connection:
        forged = update(LOG).where(LOG.c.number == 2).values(hash=new.expected_hash)
        connection.execute(forged)
    assert new.expected_hash != old.hash
    assert "it does not follow from the entry before it" in _problems(board)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_removed_entry_is_found(board: Store, number: int) -> None:
    head = audit_store(board).head
    with writing(board.engine) as connection:
        connection.execute(delete(LOG).where(LOG.c.number == number))
    assert _problems(board) != []
    if number == 4:
        assert "the log ends before the entry that --head names: entries were removed" in _problems(
            board, head
        )
    else:
        assert any("removed" in problem for problem in _problems(board))


def test_a_last_entry_removed_with_all_its_traces_is_found_by_the_head_that_a_reader_kept(
    board: Store,
) -> None:
    """History, row and log agree that the run was never withdrawn."""
    head, run = audit_store(board).head, _runs(board)[0]
    with writing(board.engine) as connection:
        connection.execute(delete(LOG).where(LOG.c.number == 4))
    write_history(board.folder / run, read_history(board.folder / run)[:1])
    board.catch_up()
    assert _problems(board) == []
    assert _problems(board, head) == ["the log ends before the entry that --head names: entries were removed"]
    board.record(run, new_event(State.VERIFIED, "eve"))
    assert _problems(board) == []
    assert _problems(board, head) == ["it is not the entry that --head names: the log was rewritten"]


def _row_without_entry(board: Store) -> None:
    with writing(board.engine) as connection:
        row = dict(connection.execute(select(RUNS).limit(1)).mappings().one())
        connection.execute(insert(RUNS), [{**row, "id": "f" * 64}])


def _changed_row(**values: str) -> Callable[[Store], None]:
    def change(board: Store) -> None:
        with writing(board.engine) as connection:
            connection.execute(update(RUNS).where(RUNS.c.id == _runs(board)[0]).values(**values))

    return change


def _removed_row(board: Store) -> None:
    run = _runs(board)[1]
    with writing(board.engine) as connection:
        connection.execute(text("DELETE FROM metric_values WHERE run = :run"), {"run": run})
        connection.execute(delete(RUNS).where(RUNS.c.id == run))


def _changed_file(board: Store) -> None:
    path = board.folder / _runs(board)[1] / "results.json"
    path.write_bytes(path.read_bytes().replace(b"40.0", b"90.0"))


def _removed_files(board: Store) -> None:
    shutil.rmtree(board.folder / _runs(board)[1])


def _removed_file(board: Store) -> None:
    (board.folder / _runs(board)[1] / "results.json").unlink()


def _changed_history(board: Store) -> None:
    folder = board.folder / _runs(board)[0]
    write_history(folder, [read_history(folder)[0], new_event(State.VERIFIED, "eve")])


@pytest.mark.parametrize(
    ("tamper", "problem"),
    [
        (_row_without_entry, "the log has no entry that it was accepted"),
        (_changed_row(state="verified"), "the board states verified, but the log withdrawn"),
        (_changed_row(signed_by="0123456789ABCDEF"), "the board states the signing key 0123456789ABCDEF"),
        (_removed_row, "it is not on the board"),
        (_changed_file, "the files changed after they were published"),
        (_removed_file, "is missing"),
        (_removed_files, "its files are missing"),
        (_changed_history, "its history is not the one in the log"),
    ],
)
def test_a_board_that_is_not_what_the_log_says_is_found(
    board: Store, tamper: Callable[[Store], None], problem: str
) -> None:
    tamper(board)
    (found,) = _problems(board)
    assert problem in found


def test_a_row_and_its_entry_come_together_or_not_at_all(
    board: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction fails at its very end, after both were written."""

    def fail(connection: object, changes: object) -> None:
        log_changes(connection, changes)
        raise OSError("the power went")

    with monkeypatch.context() as broken:
        broken.setattr(store, "log_changes", fail)
        with pytest.raises(OSError, match="the power went"):
            added(board, Made(name="d", values={"mfu": 1.0}))
    with board.engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(RUNS)).scalar_one() == 3
        assert last_entry(connection).number == 4
    board.catch_up()
    found = audit_store(board)
    assert (found.runs, found.entries, found.problems) == (4, 5, [])


def test_writers_at_once_do_not_fork_the_chain(board: Store, database: str | None) -> None:
    """Each is a program of its own to the database, and no lock of files keeps them apart."""
    start = threading.Barrier(4)

    def write(writer: int) -> None:
        mine = open_store(board.data, database)
        start.wait(300)
        for number in range(6):
            run = hashlib.sha256(f"{writer} {number}".encode()).hexdigest()
            with writing(mine.engine) as connection:
                log_changes(connection, {run: [new_event(State.SELF_REPORTED, f"writer {writer}")]})
        mine.engine.dispose()

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write, range(4)))
    found = audit_store(board)
    assert found.entries == 4 + 24
    assert [each for each in found.problems if each.where.startswith("entry")] == []


def test_the_second_writer_waits_for_the_first_and_follows_it(board: Store) -> None:
    """The second begins while the first has written its entry and not committed it."""
    names = [hashlib.sha256(name).hexdigest() for name in (b"first", b"second")]
    event = new_event(State.SELF_REPORTED, "ada")
    with ThreadPoolExecutor(1) as other:
        with writing(board.engine) as connection:
            log_changes(connection, {names[0]: [event]})
            waiting = other.submit(_append, board, names[1])
        waiting.result(300)
    with board.engine.connect() as connection:
        assert [entry.run for entry in entries(connection)][4:] == names
    assert [each for each in audit_store(board).problems if each.where.startswith("entry")] == []


def _append(board: Store, run: str) -> None:
    with writing(board.engine) as connection:
        log_changes(connection, {run: [new_event(State.SELF_REPORTED, "ada")]})


def test_a_database_that_was_lost_is_not_taken_for_an_empty_board(small: Store) -> None:
    added(small, MADE[0])
    small.engine.dispose()
    for path in small.data.glob("index.sqlite*"):
        path.unlink()
    command = ["ccl-bench", "board", "audit", str(small.data)]
    lost = invoke(command)
    assert "1 folder of bundles not on the board: ccl-bench board index" in lost.stderr
    assert invoke(["ccl-bench", "board", "index", str(small.data)]).returncode == 0
    assert (invoke(command).stderr, invoke(command).stdout[:5]) == ("", "1 run")


def test_a_head_that_is_none_is_wrong_usage(small: Store) -> None:
    done = invoke(["ccl-bench", "board", "audit", str(small.data), "--head", "nonsense"])
    assert (done.returncode, "NUMBER:HASH" in done.stderr) == (2, True)


def test_the_command_says_what_is_wrong_and_what_to_keep(board: Store, database: str | None) -> None:
    more = ["--database", database] if database else []
    command = ["ccl-bench", "board", "audit", str(board.data), *more]
    good = invoke(command)
    head = audit_store(board).head
    assert (good.returncode, good.stdout) == (
        0,
        f"3 runs, 0 of them signed; 4 entries in the log\nhead {head}\n",
    )
    assert invoke([*command, "--head", head]).returncode == 0
    assert json.loads(invoke([*command, "--format", "json"]).stdout) == {
        "entries": 4,
        "head": head,
        "runs": 3,
        "signed": 0,
        "unlisted": 0,
        "problems": [],
    }
    wrong = invoke([*command, "--head", f"9:{'0' * 64}"])
    assert (wrong.returncode, "the log ends before the entry" in wrong.stderr) == (4, True)
    _changed_file(board)
    wrong = invoke([*command, "--format", "json"])
    assert wrong.returncode == 4
    (problem,) = json.loads(wrong.stdout)["problems"]
    assert problem["where"] == _runs(board)[1]
