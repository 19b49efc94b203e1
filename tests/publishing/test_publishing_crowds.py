"""Many submitters at once: nothing is lost, nothing is there twice, and everybody gets an answer."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from publishing_archives import CARD, another, archive
from publishing_server import Leaderboard

if TYPE_CHECKING:
    from collections.abc import Callable

    from publishing_archives import Files

    from ccl_bench.leaderboard.bundle.upload import Upload

CROWD, AGAIN = 8, 3


def test_many_submitters_some_of_whom_send_twice_are_there_once(
    opened: Callable[..., Leaderboard], bundle: Files, database: str | None
) -> None:
    """On PostgreSQL they meet two servers on the same directory, each in a process of its own."""
    first = opened("uploads_per_hour = 2", database=database)
    second = Leaderboard(first.data, database) if database else first
    if database:
        second.start()
    try:
        names = [f"submitter-{number}" for number in range(CROWD)]
        calls = [(first.token(name), archive(another(bundle, name))) for name in names]
        servers = [first, second] * CROWD
        twice = [*calls[:AGAIN], *calls]
        with ThreadPoolExecutor(CROWD) as crowd:
            answers = list(crowd.map(lambda at, call: at.sent(call[1], call[0]), servers, twice))
        assert Counter(answer.status_code for answer in answers) == {201: CROWD, 200: AGAIN}
        owners = {answer.json()["id"]: answer.json()["submitter"] for answer in answers}
        assert sorted(owners.values()) == sorted(names)
        assert first.states() == {run: ["self_reported"] for run in owners}
        assert {run["id"]: run["submitter"] for run in second.runs()} == owners
        events = Counter(line["event"] for line in first.log)
        assert events == {"published": CROWD, "published-again": AGAIN}
        assert list((first.data / "uploads").glob("incoming-*")) == []
        assert {first.sent(archive(bundle), token).status_code for token, _ in calls[:3]} == {429}
    finally:
        if database:
            second.close()


def test_of_many_who_publish_the_same_traces_one_is_first(
    opened: Callable[..., Leaderboard], bundle: Files
) -> None:
    leaderboard = opened()

    def sent(name: str) -> int:
        mine = {**bundle, CARD: bundle[CARD] + f"# of {name}\n".encode()}
        return leaderboard.sent(archive(mine), leaderboard.token(name)).status_code

    with ThreadPoolExecutor(8) as crowd:
        statuses = Counter(crowd.map(sent, [f"submitter-{number}" for number in range(8)]))
    assert statuses == {201: 1, 409: 7}
    assert list(leaderboard.states().values()) == [["self_reported"]]


def test_of_what_one_submitter_sends_of_the_same_traces_the_last_stays(
    opened: Callable[..., Leaderboard], bundle: Files
) -> None:
    leaderboard = opened()
    token = leaderboard.token("ada")

    def sent(number: int) -> int:
        mine = {**bundle, CARD: bundle[CARD] + f"# version {number}\n".encode()}
        return leaderboard.sent(archive(mine), token).status_code

    with ThreadPoolExecutor(8) as crowd:
        assert set(crowd.map(sent, range(8))) == {201}
    assert Counter(states[-1] for states in leaderboard.states().values()) == {
        "self_reported": 1,
        "superseded": 7,
    }
    assert len(leaderboard.runs()) == 1


READERS = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from ccl_bench import result
from ccl_bench.result import report_data
from ccl_bench.leaderboard.bundle.format import Bundle

sys.setswitchinterval(1e-6)
folder, start = Path(sys.argv[1]), threading.Barrier(12)

def read(number):
    start.wait()
    Bundle(folder).provenance, Bundle(folder).history
    result.from_json((folder / "results.json").read_bytes())
    report_data.from_json((folder / "report.json").read_bytes())

with ThreadPoolExecutor(12) as readers:
    list(readers.map(read, range(12)))
"""


def test_many_threads_may_be_the_first_to_read_a_bundle(parcel: Upload) -> None:
    """In a process of its own: types become known once, and a crash would end the tests."""
    command = [sys.executable, "-c", READERS, str(parcel.bundle.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
