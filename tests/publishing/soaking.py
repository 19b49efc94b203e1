"""A leaderboard under a crowd while its processes are killed: nothing is lost, and nothing is there twice.

python tests/publishing/soaking.py --minutes 10 [--postgresql [--kill-database]]
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commands import EXAMPLE
from databases import create_database, kill_backends, kill_server, postgresql, start_server
from publishing_archives import another, archive, files_of
from publishing_server import Leaderboard, children, killed, wait_for
from sqlalchemy import select, update

from ccl_bench.leaderboard.bundle.upload import UploadRequest, prepare_upload
from ccl_bench.leaderboard.publishing.audit import audit_store
from ccl_bench.leaderboard.publishing.queue import ENDED
from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.tables import JOBS, PUBLICATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from publishing_archives import Files

CROWD = 8


@dataclass
class Soak:
    """A leaderboard, those who send, and what they heard."""

    leaderboard: Leaderboard
    whole: Files
    until: float
    answers: Counter[str] = field(default_factory=Counter)
    """Run → times that it was called new."""
    kills: Counter[str] = field(default_factory=Counter)
    postgresql: str | None = None
    """The address of a server of databases that may be killed, too."""

    def run(self) -> None:
        """Send and kill until the time is over, then wait for what is under way."""
        with ThreadPoolExecutor(CROWD + 2) as threads:
            jobs = [threads.submit(self._submit, number) for number in range(CROWD)]
            jobs += [threads.submit(self._mend), threads.submit(self._kill)]
            for job in jobs:
                job.result()
        with writing(self.leaderboard.store.engine) as connection:
            connection.execute(update(JOBS).values(due_at="2000-01-01T00:00:00.000000Z"))
        wait_for(lambda: self._open_jobs() == 0, 300)
        self._check()

    def _submit(self, number: int) -> None:
        """Publish recording after recording, each a second time too."""
        token = self.leaderboard.token(f"submitter-{number}")
        bundle = {name: content for name, content in self.whole.items() if not name.startswith("run/")}
        for count in range(1_000_000):
            if time.monotonic() > self.until:
                return
            sent = archive(another(bundle, f"{number} {count}"))
            self._send(sent, token)
            self._send(sent, token)

    def _mend(self) -> None:
        """Publish one recording with its traces, its card mended again and again."""
        token = self.leaderboard.token("ada")
        card = self.whole["workload_card.yaml"]
        for count in range(1_000_000):
            if time.monotonic() > self.until:
                return
            mended = {**self.whole, "workload_card.yaml": card + f"# version {count}\n".encode()}
            self._send(archive(mended), token)
            time.sleep(2)

    def _send(self, sent: bytes, token: str) -> None:
        """Send until there is an answer, as `ccl-bench publish` does."""
        while True:
            try:
                answer = self.leaderboard.sent(sent, token)
            except httpx.TransportError:
                time.sleep(0.2)
                continue
            if self.postgresql and answer.status_code == 503:
                time.sleep(0.2)
                continue
            reported = self.leaderboard.reported.rpartition("Traceback")[2][-5000:]
            assert answer.status_code in {200, 201}, f"{answer.text}\n{reported}"
            self.answers[answer.json()["id"]] += answer.status_code == 201
            return

    def _kill(self) -> None:
        """Kill the server, one of its workers or its database, again and again."""
        choices = random.Random(0)
        while time.monotonic() < self.until:
            time.sleep(choices.uniform(1, 5))
            if self.postgresql and choices.random() < 0.5:
                if choices.random() < 0.5:
                    kill_backends(self.postgresql)
                    self.kills["backends"] += 1
                else:
                    kill_server(self.postgresql)
                    start_server(self.postgresql)
                    self.kills["database"] += 1
                continue
            workers = children(self.leaderboard.process)
            if workers and choices.random() < 0.5:
                with contextlib.suppress(ProcessLookupError):
                    killed(choices.choice(workers))
                self.kills["worker"] += 1
            else:
                self.leaderboard.kill()
                self.leaderboard.start()
                self.kills["server"] += 1

    def _open_jobs(self) -> int:
        ended = [state.value for state in ENDED]
        with self.leaderboard.store.engine.connect() as connection:
            return len(connection.execute(select(JOBS.c.run).where(JOBS.c.state.not_in(ended))).all())

    def _check(self) -> None:
        states = self.leaderboard.states()
        assert states.keys() == self.answers.keys()
        assert max(self.answers.values()) == 1, "a bundle was called new twice"
        assert all(len(set(each)) == len(each) for each in states.values()), "a change was written twice"
        with self.leaderboard.store.engine.connect() as connection:
            rows = connection.execute(select(PUBLICATIONS.c.run, PUBLICATIONS.c.recording)).all()
        assert sorted(run for run, _ in rows) == sorted(states)
        listed = Counter(
            recording for run, recording in rows if states[run][-1] in {"self_reported", "verified"}
        )
        assert set(listed.values()) == {1}, "a recording is listed twice"
        assert len(listed) == len({recording for _, recording in rows}), "a recording is not listed"
        assert not list((self.leaderboard.data / "uploads").glob("incoming-*"))
        assert audit_store(self.leaderboard.store).problems == []
        _, found, rest = self.leaderboard.reported.partition("Traceback")
        assert not found, rest[:5000]


@contextlib.contextmanager
def _database(is_postgresql: bool) -> Iterator[str | None]:
    if not is_postgresql:
        yield None
        return
    with postgresql() as server:
        yield create_database(server, "soak")


def main() -> None:
    """Run for as long as was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--kill-database", action="store_true", help="kill PostgreSQL, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _database(asked.postgresql) as database:
        for name in ("parcel", "data"):
            (Path(folder) / name).mkdir()
        whole = files_of(
            prepare_upload(UploadRequest(str(EXAMPLE), with_traces=True), Path(folder) / "parcel")
        )
        leaderboard = Leaderboard(Path(folder) / "data", database, workers=2)
        (leaderboard.data / "publishing.toml").write_text("uploads_per_hour = 1000000\n", encoding="utf-8")
        leaderboard.start()
        try:
            soak = Soak(leaderboard, whole, time.monotonic() + 60 * asked.minutes)
            soak.postgresql = database if asked.kill_database else None
            soak.run()
            verdicts = Counter(line["verdict"] for line in leaderboard.log if line["event"] == "recomputed")
        finally:
            leaderboard.close()
    print(
        f"{len(soak.answers)} bundles, {dict(soak.kills)} killed, {dict(verdicts)}: nothing lost or doubled"
    )


if __name__ == "__main__":
    main()
