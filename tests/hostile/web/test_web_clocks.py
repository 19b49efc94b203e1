"""Clocks that were moved between two looks: no job waits for years, no token outlives its days by them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from leaderboard_bundles import Made, added
from publishing_server import Leaderboard

from ccl_bench.leaderboard.publishing import queue, tokens
from ccl_bench.leaderboard.publishing.audit import audit_store
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.store import State, database, new_event, writing
from ccl_bench.leaderboard.web.rate_limits import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

YEAR = timedelta(days=365)


@pytest.fixture
def unserved(tmp_path: Path) -> Iterator[Leaderboard]:
    """Return a leaderboard without a server."""
    made = Leaderboard(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Return a function that moves the clock of the leaderboard, from what it is, by some time."""

    def by(shift: timedelta) -> None:
        class Moved(datetime):
            """A clock that is wrong."""

            @classmethod
            def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
                return datetime.now(UTC) + shift

        monkeypatch.setattr(database, "datetime", Moved)

    return by


def test_a_job_of_a_clock_that_was_ahead_is_worked_on_now(
    unserved: Leaderboard, move: Callable[[timedelta], None]
) -> None:
    engine = unserved.store.engine
    move(YEAR)
    with writing(engine) as connection:
        queue.enqueue(connection, "queued")
    move(timedelta())
    job = queue.claim(engine, "a")
    assert job is not None
    assert queue.claim(engine, "b") is None
    for shift_s in (queue.LEASE_S / 2, -3500.0):
        move(timedelta(seconds=shift_s))
        assert queue.claim(engine, "b") is None
    move(-YEAR)
    assert queue.claim(engine, "b") is not None
    assert not queue.renew(engine, job)
    move(YEAR)
    assert queue.claim(engine, "c") is not None


def test_rates_use_a_clock_that_cannot_be_moved() -> None:
    """Whose clock goes back would be refused until it is where it was; ahead, all requests would be new."""
    assert RateLimiter().now is time.monotonic
    assert not time.get_clock_info("monotonic").adjustable
    assert time.get_clock_info("time").adjustable


def test_a_token_is_valid_for_its_days_by_the_clock_and_a_revoked_one_never(
    unserved: Leaderboard, move: Callable[[timedelta], None]
) -> None:
    engine = unserved.store.engine
    token, revoked = (tokens.create_token(engine, "ada", Role.SUBMITTER) for _ in range(2))
    tokens.revoke_token(engine, revoked.split("_")[1])
    for shift in (YEAR, timedelta(), -YEAR):
        move(shift)
        assert (tokens.authenticate(engine, token) is not None) == (shift < YEAR)
        assert tokens.authenticate(engine, revoked) is None


def test_a_log_whose_clock_went_back_is_as_it_was_written(
    unserved: Leaderboard, move: Callable[[timedelta], None]
) -> None:
    move(YEAR)
    run = added(unserved.store, Made(values={"mfu": 40.0}))
    for shift, state in ((timedelta(), State.WITHDRAWN), (-YEAR, State.SELF_REPORTED)):
        move(shift)
        unserved.store.record(run, new_event(state, "mae", "a note"))
    assert list(audit_store(unserved.store).problems) == []
    assert unserved.states() == {run: ["self_reported", "withdrawn", "self_reported"]}
