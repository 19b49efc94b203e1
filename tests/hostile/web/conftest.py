"""Leaderboards that `ccl-bench serve` serves, for those who attack them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

_TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TESTS / "leaderboard"), str(_TESTS / "publishing")]

from leaderboard_bundles import Made, added  # noqa: E402
from publishing_server import Leaderboard  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Leaderboard]]:
    """Return a function that starts a server with one published run, and options of its own."""
    made: list[Leaderboard] = []

    def start(*options: str) -> Leaderboard:
        made.append(Leaderboard(tmp_path_factory.mktemp("attacked"), options=options))
        added(made[-1].store, Made(values={"mfu": 40.0}))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def server(started: Callable[..., Leaderboard]) -> Leaderboard:
    """Return a server that most tests share; a variable that would trust any proxy is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORWARDED_ALLOW_IPS", "*")
        return started()
