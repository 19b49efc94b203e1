"""Servers and workers that are killed while they work: what was accepted is there, and there once."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
from publishing_archives import another, archive
from publishing_server import PATIENCE_S, Leaderboard, children, killed, wait_for
from sqlalchemy import select, update

from ccl_bench.leaderboard.publishing import queue
from ccl_bench.leaderboard.publishing.audit import audit_store
from ccl_bench.leaderboard.publishing.publications import find_publication
from ccl_bench.leaderboard.publishing.queue import JobState
from ccl_bench.leaderboard.store import State, new_event, writing
from ccl_bench.leaderboard.store.tables import JOBS, PUBLICATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from publishing_archives import Files


def _job(leaderboard: Leaderboard) -> tuple[str, int]:
    """Return the state of the only job, and how often it was begun."""
    with leaderboard.store.engine.connect() as connection:
        state, attempts = connection.execute(select(JOBS.c.state, JOBS.c.attempts)).one()
    return state, attempts


def _end_leases(leaderboard: Leaderboard) -> None:
    """Let the time pass after which a silent worker is taken for dead."""
    with writing(leaderboard.store.engine) as connection:
        connection.execute(update(JOBS).values(due_at="2000-01-01T00:00:00.000000Z"))


def _verdicts(leaderboard: Leaderboard) -> list[str]:
    return [line["verdict"] for line in leaderboard.log if line["event"] == "recomputed"]


def test_a_server_killed_during_an_upload_leaves_nothing_of_it(
    started: Callable[..., Leaderboard], bundle: Files
) -> None:
    leaderboard = started()
    token, sent = leaderboard.token("ada"), archive(bundle)
    there = urlsplit(leaderboard.address)
    uploads = leaderboard.data / "uploads"
    with socket.create_connection((there.hostname, there.port)) as line:
        head = f"POST /api/v1/bundles HTTP/1.1\r\nhost: {there.netloc}\r\nauthorization: Bearer {token}\r\n"
        head += f"content-type: application/gzip\r\ncontent-length: {len(sent)}\r\n\r\n"
        line.sendall(head.encode() + sent[: len(sent) // 2])
        wait_for(lambda: any(path.stat().st_size for path in uploads.glob("incoming-*/bundle.tar.gz")))
        leaderboard.kill()
    assert list(uploads.glob("incoming-*")) != []
    leaderboard.work()
    assert list(uploads.glob("incoming-*")) == []
    leaderboard.serve()
    assert (leaderboard.states(), leaderboard.runs()) == ({}, [])
    assert leaderboard.sent(sent, token).status_code == 201


def test_a_server_killed_while_many_publish_keeps_what_it_accepted(
    started: Callable[..., Leaderboard], bundle: Files
) -> None:
    """Submitters try again until they hear an answer, as `ccl-bench publish` does.

    `make soak` does it for minutes, on PostgreSQL too.
    """
    leaderboard = started()
    names = [f"submitter-{number}" for number in range(10)]
    answered: list[str] = []

    def publish(name: str) -> int:
        token, sent = leaderboard.token(name), archive(another(bundle, name))
        until = time.monotonic() + 2 * PATIENCE_S
        while time.monotonic() < until:
            try:
                answer = leaderboard.sent(sent, token)
            except httpx.TransportError:
                time.sleep(0.1)
                continue
            assert answer.status_code in {200, 201}, answer.text
            answered.append(answer.json()["id"])
            return answer.status_code
        raise AssertionError("no answer")

    with ThreadPoolExecutor(len(names)) as crowd:
        sending = [crowd.submit(publish, name) for name in names]
        wait_for(lambda: len(answered) >= len(names) // 2 or all(each.done() for each in sending))
        leaderboard.kill()
        leaderboard.start()
        statuses = Counter(each.result() for each in sending)
    assert statuses.keys() <= {201, 200}
    assert leaderboard.states() == {run: ["self_reported"] for run in answered}
    assert len(leaderboard.runs()) == len(set(answered)) == len(names)
    with leaderboard.store.engine.connect() as connection:
        assert sorted(connection.execute(select(PUBLICATIONS.c.submitter)).scalars()) == sorted(names)
    assert audit_store(leaderboard.store).problems == []


def test_what_a_server_died_before_doing_is_done_by_the_next(
    opened: Callable[..., Leaderboard], bundle: Files
) -> None:
    """The bundle came to its place, and whatever follows from it did not happen."""
    leaderboard = opened()
    token = leaderboard.token("ada")
    old = leaderboard.sent(archive(bundle), token).json()["id"]
    new = leaderboard.sent(archive({**bundle, **_mended(bundle)}), token).json()["id"]
    leaderboard.stop()
    (leaderboard.data / "runs" / old / "history.json").write_text(
        '[{"state": "self_reported", "at": "2026-01-01T00:00:00Z", "by": "ada"}]', encoding="utf-8"
    )
    with writing(leaderboard.store.engine) as connection:
        connection.execute(PUBLICATIONS.delete().where(PUBLICATIONS.c.run == new))
    leaderboard.serve()
    assert leaderboard.states() == {old: ["self_reported", "superseded"], new: ["self_reported"]}
    with leaderboard.store.engine.connect() as connection:
        assert find_publication(connection, new).submitter == "ada"


def _mended(bundle: Files) -> Files:
    return {"workload_card.yaml": bundle["workload_card.yaml"] + b"# mended\n"}


def test_what_a_process_that_was_killed_left_in_a_bundle_costs_no_run(
    opened: Callable[..., Leaderboard], bundle: Files
) -> None:
    """It was writing a history or a signature, which then did not come to its place."""
    leaderboard = opened()
    run = leaderboard.sent(archive(bundle), leaderboard.token("ada")).json()["id"]
    folder = leaderboard.data / "runs" / run
    for name in (".history.json.a8f3", ".origin.minisig.q0_x"):
        (folder / name).write_bytes(b"[")
    leaderboard.store.record(run, new_event(State.WITHDRAWN, "ada", "once more"))
    assert (leaderboard.store.refused, leaderboard.states()) == ({}, {run: ["self_reported", "withdrawn"]})
    assert [path.name for path in folder.glob(".*")] == []
    (folder / ".hidden").touch()
    leaderboard.store.index([run])
    assert [*leaderboard.store.refused] == [run]


def test_a_recomputation_whose_process_is_killed_is_finished_once(
    started: Callable[..., Leaderboard], whole: Files
) -> None:
    """First the worker alone is killed, of which the server starts another, then both."""
    leaderboard = started(workers=1)
    run = leaderboard.sent(archive(whole), leaderboard.token("ada")).json()["id"]
    _kill_the_worker(leaderboard, attempt=1)
    _end_leases(leaderboard)
    _kill_the_worker(leaderboard, attempt=2)
    leaderboard.kill()
    _end_leases(leaderboard)
    leaderboard.start()
    wait_for(lambda: _job(leaderboard)[0] == JobState.VERIFIED)
    assert _job(leaderboard) == (JobState.VERIFIED, 3)
    wait_for(lambda: _verdicts(leaderboard))
    assert leaderboard.states() == {run: ["self_reported", "verified"]}
    assert _verdicts(leaderboard) == ["verified"]


def _kill_the_worker(leaderboard: Leaderboard, attempt: int) -> None:
    """Kill the worker while it recomputes the only run, whose job it then does not end."""
    wait_for(lambda: _job(leaderboard) == (JobState.RUNNING, attempt))
    (worker,) = children(leaderboard.process)
    wait_for(lambda: children(worker))
    measuring = children(worker)
    killed(worker)
    wait_for(lambda: not any(map(_is_alive, measuring)))
    assert _job(leaderboard) == (JobState.RUNNING, attempt)


def _is_alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_killed_between_history_and_queue_writes_no_second_verdict(
    opened: Callable[..., Leaderboard], whole: Files
) -> None:
    leaderboard = opened()
    run = leaderboard.sent(archive(whole), leaderboard.token("ada")).json()["id"]
    assert queue.claim(leaderboard.store.engine, "the one that dies").run == run
    leaderboard.store.record(run, new_event(State.VERIFIED, "server", "as the one that died wrote it"))
    _end_leases(leaderboard)
    done = leaderboard.work()
    assert (done.returncode, "1 run recomputed" in done.stderr) == (0, True), done.stderr
    assert _job(leaderboard) == (JobState.VERIFIED, 2)
    assert leaderboard.states() == {run: ["self_reported", "verified"]}


def test_a_worker_that_lost_its_lease_cannot_end_the_job(unserved: Leaderboard) -> None:
    store = unserved.store
    with writing(store.engine) as connection:
        queue.enqueue(connection, "a" * 64)
        queue.enqueue(connection, "a" * 64)
    first = queue.claim(store.engine, "first")
    assert queue.claim(store.engine, "second") is None
    _end_leases(unserved)
    second = queue.claim(store.engine, "second")
    assert (first.attempt, second.attempt) == (1, 2)
    assert (queue.renew(store.engine, first), queue.renew(store.engine, second)) == (False, True)
    with writing(store.engine) as connection:
        queue.finish(connection, first, JobState.DIFFERENT, "too late")
    with store.engine.connect() as connection:
        assert queue.job_states(connection, ["a" * 64]) == {"a" * 64: (JobState.RUNNING, "")}


def test_of_many_workers_each_job_is_one_workers(unserved: Leaderboard) -> None:
    """Eight workers claim forty jobs at once."""
    store = unserved.store
    with writing(store.engine) as connection:
        for number in range(40):
            queue.enqueue(connection, f"{number:064x}")
    got: list[str] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        while job := queue.claim(store.engine, name):
            with lock:
                got.append(job.run)

    with ThreadPoolExecutor(8) as workers:
        list(workers.map(work, [f"worker-{number}" for number in range(8)]))
    with store.engine.connect() as connection:
        waiting = connection.execute(select(JOBS.c.run).where(JOBS.c.state == JobState.WAITING)).all()
    assert len(got) == len(set(got)) == 40 - len(waiting)


def test_a_job_that_kills_its_workers_is_given_up(unserved: Leaderboard) -> None:
    run = "b" * 64
    with writing(unserved.store.engine) as connection:
        queue.enqueue(connection, run)
    for attempt in (1, 2, 3):
        assert queue.claim(unserved.store.engine, "mortal").attempt == attempt
        _end_leases(unserved)
    assert queue.claim(unserved.store.engine, "mortal") is None
    with unserved.store.engine.connect() as connection:
        assert queue.job_states(connection, [run])[run] == (
            JobState.FAILED,
            "the worker died 3 times while it recomputed the run",
        )
