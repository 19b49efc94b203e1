"""The interface over HTTP as strangers find it: who may do what, and no call that brings it down."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from commands import ROOT
from publishing_archives import another, archive
from sqlalchemy import update

from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.tables import TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

    from publishing_archives import Files
    from publishing_server import Leaderboard

FORGED = f"cclb_{'0' * 12}_{'A' * 43}"


@pytest.fixture(scope="module")
def run(leaderboard: Leaderboard, bundle: Files) -> str:
    """Return a run of ada's."""
    answer = leaderboard.sent(archive(bundle), leaderboard.token("ada"))
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


@pytest.mark.parametrize(
    "credentials",
    [
        f"Bearer {FORGED}",
        "Bearer cclb_",
        "Bearer cclb_'; DROP TABLE tokens; --",
        "Basic YWRhOnNlY3JldA==",
        "Bearer " + "x" * 5000,
        "Bearer \xe4",
        "nonsense",
    ],
)
def test_a_forged_token_opens_nothing_and_is_written_down(leaderboard: Leaderboard, credentials: str) -> None:
    before = len(leaderboard.log)
    for method, path in (("POST", "bundles"), ("GET", "publishing"), ("GET", "tokens")):
        headers = {"authorization": credentials.encode("latin-1"), "content-type": "application/gzip"}
        answer = leaderboard.asked(method, path, headers=headers, content=b"x" if method == "POST" else None)
        assert answer.status_code == 401, answer.text
        assert answer.headers["www-authenticate"] == "Bearer"
    lines = leaderboard.log[before:]
    assert [(line["event"], line["status"]) for line in lines] == [("refused", 401)] * 3
    assert not any("submitter" in line for line in lines)


def test_the_secret_half_of_a_token_cannot_be_swapped(leaderboard: Leaderboard) -> None:
    ada, eve = leaderboard.token("ada"), leaderboard.token("eve", Role.ADMIN)
    mixed = f"{eve[:18]}{ada[18:]}"
    assert leaderboard.asked("GET", "tokens", eve).status_code == 200
    assert leaderboard.asked("GET", "tokens", mixed).status_code == 401


def test_a_token_that_expired_or_was_revoked_opens_nothing(leaderboard: Leaderboard) -> None:
    expired, revoked = leaderboard.token("ada"), leaderboard.token("ada")
    with writing(leaderboard.store.engine) as connection:
        past = update(TOKENS).where(TOKENS.c.id == expired[5:17]).values(expires_at=timestamp(-1))
        connection.execute(past)
    tokens.revoke_token(leaderboard.store.engine, revoked[5:17])
    for token in (expired, revoked):
        assert leaderboard.asked("GET", "publishing", token).status_code == 401


def test_no_token_is_kept_as_it_is(leaderboard: Leaderboard) -> None:
    token = leaderboard.token("ada")
    leaderboard.asked("GET", "publishing", token)
    secret = token[18:].encode()
    kept = [path for path in leaderboard.data.rglob("*") if path.is_file()]
    assert len(kept) > 3
    assert [path for path in kept if secret in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        (None, "POST", "bundles/{run}/withdraw", 401),
        (Role.SUBMITTER, "POST", "bundles/{run}/withdraw", 403),
        (Role.SUBMITTER, "POST", "bundles/{run}/approve", 403),
        (Role.SUBMITTER, "POST", "bundles/{run}/recompute", 403),
        (Role.SUBMITTER, "GET", "bundles", 403),
        (Role.SUBMITTER, "GET", "tokens", 403),
        (Role.MAINTAINER, "GET", "bundles", 200),
        (Role.MAINTAINER, "POST", "bundles/{run}/approve", 200),
        (Role.MAINTAINER, "POST", "bundles/{run}/recompute", 409),
        (Role.MAINTAINER, "POST", "tokens", 403),
        (Role.ADMIN, "POST", "tokens", 201),
        (Role.ADMIN, "DELETE", "tokens/none", 404),
        (Role.MAINTAINER, "POST", "bundles/0000/approve", 404),
        (None, "GET", "bundles/{run}", 200),
        (None, "GET", "bundles/..%2f..%2fetc", 404),
    ],
)
def test_a_role_may_do_what_it_may(
    leaderboard: Leaderboard, run: str, role: Role | None, method: str, path: str, status: int
) -> None:
    token = leaderboard.token("eve", role) if role else None
    body = {"submitter": "new"} if (method, path) == ("POST", "tokens") else None
    answer = leaderboard.asked(method, path.format(run=run), token, json=body)
    assert answer.status_code == status, answer.text
    assert leaderboard.states()[run] == ["self_reported"]


def test_a_quarantined_run_is_known_to_its_submitter_and_maintainers_only(
    opened: Callable[..., Leaderboard], bundle: Files
) -> None:
    leaderboard = opened('quarantine = "all"')
    ada = leaderboard.token("ada")
    run = leaderboard.sent(archive(bundle), ada).json()["id"]
    eve, mae = leaderboard.token("eve"), leaderboard.token("mae", Role.MAINTAINER)
    found = [leaderboard.asked("GET", f"bundles/{run}", who).status_code for who in (None, eve, ada, mae)]
    assert found == [404, 404, 200, 200]
    assert leaderboard.asked("POST", f"bundles/{run}/withdraw", eve).status_code == 404
    for page in (f"runs/{run}", f"api/v1/runs/{run}", f"runs/{run}/report"):
        assert leaderboard.page(page).status_code == 404, page


def test_uploads_beyond_the_rate_are_refused_with_the_time_to_wait(
    opened: Callable[..., Leaderboard], bundle: Files, database: str | None
) -> None:
    leaderboard = opened("uploads_per_hour = 2", database=database)
    ada, bob = leaderboard.token("ada"), leaderboard.token("bob")
    sent = archive(bundle)
    assert [leaderboard.sent(sent, ada).status_code for _ in range(2)] == [201, 200]
    refused = leaderboard.sent(sent, ada)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 3600
    assert leaderboard.sent(archive(another(bundle, "of bob")), bob).status_code == 201


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("content-length: 99999999999999999999", "4"),
        ("content-length: -1", "400"),
        ("content-length: " + "9" * 5000, "4"),
        ("transfer-encoding: chunked\r\n\r\nZZZ\r\n", "4"),
        ("content-length: 5\r\ncontent-length: 6", "400"),
        ("content-type: text/plain", "415"),
        ("content-length: 900000000000", "413"),  # at once: nothing of it was sent
    ],
)
def test_a_malformed_call_is_refused(leaderboard: Leaderboard, head: str, status: str) -> None:
    there = urlsplit(leaderboard.address)
    token = leaderboard.token("ada")
    with socket.create_connection((there.hostname, there.port), timeout=300) as line:
        call = f"POST /api/v1/bundles HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        kind = "" if "content-type" in head else "content-type: application/gzip\r\n"
        line.sendall(f"{call}{kind}{head}\r\n\r\n".encode())
        answer = line.recv(1000).decode()
    assert answer.startswith(f"HTTP/1.1 {status}"), answer


def test_whatever_its_own_description_allows_is_answered_as_it_says(
    capfd: pytest.CaptureFixture[str], opened: Callable[..., Leaderboard], bundle: Files, tmp_path: Path
) -> None:
    """Schemathesis makes calls, sound ones and others, from the description that the server gives.

    `make soak` goes through its coverage phase too, with every kind of mistake in every parameter.
    """
    program = Path(sys.executable).parent / "schemathesis"
    if not program.exists():
        pytest.skip("schemathesis is not installed: make test")
    leaderboard = opened("uploads_per_hour = 100000\ntoken_requests_per_minute = 1000000")
    run = leaderboard.sent(archive(bundle), leaderboard.token("ada")).json()["id"]
    (tmp_path / "schemathesis.toml").write_text(f'[parameters]\n"path.run" = "{run}"\n', encoding="utf-8")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    phases = os.environ.get("SCHEMATHESIS_PHASES", "fuzzing")
    how = f"--phases {phases} --max-examples 3 --generation-deterministic --checks {checks}"
    how += " --exclude-operation-id publish_api_v1_bundles_post"  # it cannot make archives
    token = leaderboard.token("root", Role.ADMIN)
    command = [program, "run", f"{leaderboard.address}/openapi.json", *how.split()]
    done = subprocess.run(
        [*command, "-H", f"Authorization: Bearer {token}", "--no-color"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "Traceback" not in capfd.readouterr().err


def test_every_setting_is_in_the_manual() -> None:
    page = (ROOT / "docs" / "publishing.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE) == list(Settings.__struct_fields__)
