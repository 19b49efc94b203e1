"""How often somebody may call: of each address, and of each token; and how long a token is good."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from commands import invoke

from ccl_bench.base.errors import UsageError
from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.web import app, rate_limits
from ccl_bench.leaderboard.web.rate_limits import RateLimiter, network_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from publishing_server import Leaderboard


def test_a_bucket_empties_and_fills_evenly_and_each_caller_has_one() -> None:
    now = [100.0]
    limiter = RateLimiter(now=lambda: now[0])
    assert [limiter.take("ada", 30) for _ in range(31)] == [0] * 30 + [2]
    assert limiter.take("bob", 30) == 0
    now[0] += 1
    assert limiter.take("ada", 30) == 1
    now[0] += 1
    assert [limiter.take("ada", 30) for _ in range(2)] == [0, 2]
    now[0] += 3600
    assert [limiter.take("ada", 30) for _ in range(31)] == [0] * 30 + [2]


def test_a_refused_call_costs_nothing_and_a_lower_limit_holds_at_once() -> None:
    now = [0.0]
    limiter = RateLimiter(now=lambda: now[0])
    assert [limiter.take("ada", 1) for _ in range(100)] == [0] + [60] * 99
    now[0] = 60.0
    assert limiter.take("ada", 1) == 0
    limiter.take("bob", 1000)
    assert [limiter.take("bob", 1) for _ in range(2)] == [0, 60]


def test_callers_without_number_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_MOST_KEPT", 10)
    limiter = RateLimiter(now=lambda: 0.0)
    assert limiter.take("first", 1) == 0
    for number in range(9):
        limiter.take(str(number), 1)
    assert limiter.take("first", 1) == 60
    for number in range(100):
        limiter.take(str(number), 1)
        assert len(limiter._buckets) <= 10
    assert limiter.take("first", 1) == 0


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:c000:208", "192.0.2.8"),
        ("a socket", "a socket"),
    ],
)
def test_who_has_a_network_of_addresses_is_one_caller(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.fixture
def frozen(opened: Callable[..., Leaderboard], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Leaderboard]:
    """Return a function that serves a leaderboard for which no time passes."""
    for module in (app, rate_limits):
        monkeypatch.setattr(module, "RateLimiter", partial(RateLimiter, now=lambda: 0.0))
    return opened


def test_an_address_that_calls_too_often_is_refused_and_others_are_not(
    frozen: Callable[..., Leaderboard],
) -> None:
    board = frozen("requests_per_minute = 3")
    token = board.token("ada")

    def call(address: str, path: str, token: str | None = None) -> tuple[int, str | None]:
        answer = board.asked("GET", path, token, headers={"x-forwarded-for": address})
        return answer.status_code, answer.headers.get("retry-after")

    forged = f"cclb_{'0' * 12}_{'A' * 43}"
    calls = [("health", None), ("tokens", forged), ("nothing", None)]
    assert [call("192.0.2.1", path, token)[0] for path, token in calls] == [200, 401, 404]
    for path, with_token in (("health", None), ("publishing", token), ("tokens", forged)):
        assert call("192.0.2.1", path, with_token) == (429, "20")
    assert call("192.0.2.2", "health") == (200, None)
    refused = board.asked("GET", "health", headers={"x-forwarded-for": "192.0.2.1"})
    assert "more than 3 requests a minute" in refused.json()["detail"]
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert not any(line.get("status") == 429 for line in board.log)  # it would fill the disk
    (board.data / "publishing.toml").write_text("this is no TOML", encoding="utf-8")
    assert call("192.0.2.1", "health")[0] == 429
    assert call("192.0.2.3", "health")[0] == 200


def test_a_token_that_calls_too_often_is_refused_from_wherever_and_others_are_not(
    frozen: Callable[..., Leaderboard],
) -> None:
    board = frozen("token_requests_per_minute = 2")
    ada, bob = board.token("ada"), board.token("bob")

    def call(token: str, address: str) -> tuple[int, str | None]:
        answer = board.asked("GET", "publishing", token, headers={"x-forwarded-for": address})
        return answer.status_code, answer.headers.get("retry-after")

    assert [call(ada, f"192.0.2.{number}") for number in range(3)] == [(200, None)] * 2 + [(429, "30")]
    assert call(bob, "192.0.2.1") == (200, None)
    assert call(board.token("ada"), "192.0.2.1") == (200, None)


def test_callers_without_a_token_do_not_fill_the_log(
    frozen: Callable[..., Leaderboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_LOGGED_PER_MINUTE", 3)
    board = frozen()
    ada = board.token("ada")
    assert {board.asked("GET", "tokens").status_code for _ in range(5)} == {401}
    assert [line["status"] for line in board.log] == [401] * 3
    assert board.asked("GET", "tokens", ada).status_code == 403
    assert [line.get("submitter") for line in board.log[3:]] == ["ada"]


def test_every_token_expires(frozen: Callable[..., Leaderboard], database: str | None) -> None:
    board = frozen(database=database)
    engine, now = board.store.engine, datetime.now(UTC)
    tokens.create_token(engine, "ada", Role.SUBMITTER)
    tokens.create_token(engine, "ada", Role.SUBMITTER, days=366)
    first, last = (datetime.fromisoformat(row.expires_at) for row in tokens.list_tokens(engine))
    assert timedelta(days=90) <= first - now < timedelta(days=91)
    assert timedelta(days=366) <= last - now < timedelta(days=367)
    for days in (0, -1, 367, 10**9):
        with pytest.raises(UsageError, match="valid for 1 to 366 days"):
            tokens.create_token(engine, "ada", Role.SUBMITTER, days=days)
    root = board.token("root", Role.ADMIN)
    wanted = [{"submitter": "ada", "days": days} for days in (366, 367, None)]
    assert [board.asked("POST", "tokens", root, json=each).status_code for each in wanted] == [201, 422, 422]
    assert all(each["expires_at"] for each in board.asked("GET", "tokens", root).json())


def test_the_command_makes_no_token_for_ever(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    for days in ("0", "367"):
        done = invoke(["ccl-bench", "board", "token", data, "ada", "--days", days])
        assert (done.returncode, "valid for 1 to 366 days" in done.stderr) == (2, True)
    before = datetime.now(UTC)
    assert invoke(["ccl-bench", "board", "token", data, "ada"]).returncode == 0
    months = [f"{moment + timedelta(days=90):%Y-%m}" for moment in (before, datetime.now(UTC))]
    listed = invoke(["ccl-bench", "board", "token", data, "--list"]).stdout
    assert any(month in listed for month in months)
