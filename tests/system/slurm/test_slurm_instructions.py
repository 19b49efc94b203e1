"""Every command of the README about Perlmutter, as written, under a real Slurm.

The table is tests/instructions/perlmutter.toml.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from slurm_numbers import assert_agrees
from slurm_site import ACTIVE, ROOT, STEPS
from slurm_statements import ON_PROCESSORS, WORKLOAD, Statement, statements, submitted, user_of

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import Cluster
    from slurm_site import Job
    from slurm_statements import User

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed: make test"
    ),
    pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed: make services"),
]

RANKS = 2
SHORTENED = {
    "steps": STEPS,
    "profile_freq": STEPS,
    "profiler_active": ACTIVE,
    "profiler_warmup": 2,
    "log_freq": ACTIVE,
    "tensor_parallel_degree": RANKS,
}
"""What a user changes for a short test run; tensor parallel over two processes is enough for it."""


@pytest.fixture(scope="module")
def user(slurm: Cluster, home: Path) -> User:
    """Return a user who has done what the README begins with."""
    return user_of(slurm, home)


@pytest.fixture(scope="module")
def recorded(user: User) -> Job:
    """Submit the test run of the README, and return its job at its end."""
    configuration = user.root / "trace_collection" / WORKLOAD / "train_config.toml"
    text = configuration.read_text()
    for key, value in SHORTENED.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    configuration.write_text(text)
    (statement,) = statements("runs")

    def submit() -> Job:
        done = statement.run(user, **ON_PROCESSORS, RANKS_PER_NODE=str(RANKS))
        assert statement.broken(user, done) == []
        return user.job(int(submitted(done)[0]), WORKLOAD, user.root)

    job = user.completed(submit)
    assert job.ended() == "COMPLETED", job.shown
    return job


TABLE = [each for each in statements() if each.when not in {"first", "runs"}]


@pytest.mark.parametrize("statement", TABLE, ids=[each.states for each in TABLE])
def test_what_the_readme_says_holds(user: User, statement: Statement, request: pytest.FixtureRequest) -> None:
    if "{repository}" in statement.command and not (ROOT / ".git").exists():
        pytest.skip("this is no clone of the repository, which could be cloned again")
    if needed := {"held": "held", "after": "recorded"}.get(statement.when):
        request.getfixturevalue(needed)
    assert statement.broken(user, statement.run(user)) == []


def test_no_statement_is_in_two_rows_and_each_says_what_is_seen() -> None:
    rows = statements()
    assert len({row.states for row in rows}) == len(rows)
    assert all({"output", "files", "job"} & row.expected.keys() for row in rows)
    assert all(row.expected.keys() <= {"status", "output", "files", "job"} for row in rows)


def test_the_numbers_of_the_test_run_are_those_of_its_traces_and_its_log(recorded: Job) -> None:
    assert_agrees(recorded, RANKS)
