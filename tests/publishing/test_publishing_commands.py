"""From a run to a place on the leaderboard and off it again, with the commands that people type."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import httpx
import pytest
from commands import EXAMPLE, invoke, ran
from publishing_archives import another, archive
from publishing_server import Leaderboard

from ccl_bench.leaderboard.publishing.tokens import Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from publishing_archives import Files


def _published(run: Path, to: str | Path, *more: str, token: str = "") -> tuple[str, str]:
    """Return where a run was published to, and what was said."""
    done = invoke(["ccl-bench", "publish", str(run), "--to", str(to), *more], CCL_BENCH_TOKEN=token)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_the_two_commands_of_a_newcomer_end_with_the_run_ranked(
    opened: Callable[..., Leaderboard], recorded: Path
) -> None:
    leaderboard = opened()
    made = ran(["ccl-bench", "board", "token", str(leaderboard.data), "ada"])
    page, said = _published(recorded, leaderboard.address, token=made.stdout.strip())
    assert "published, self-reported" in said
    assert page.startswith(f"{leaderboard.address}/runs/")
    (run,) = leaderboard.runs()
    assert (run["state"], run["submitter"], run["name"]) == ("self_reported", "ada", EXAMPLE.name)
    throughput = run["numbers"]["throughput_tokens_sec"]
    assert (throughput["place"], throughput["ranked"]) == (1, 1)
    measured = invoke(["ccl-metrics", "--trace", str(recorded), "-m", "throughput_tokens_sec"])
    assert throughput["value"] == pytest.approx(float(measured.stdout), rel=1e-5)
    assert "self-reported" in httpx.get(page, timeout=300).text
    again, said = _published(recorded, leaderboard.address, token=made.stdout.strip())
    assert (again, "already published" in said) == (page, True)
    assert list(leaderboard.states().values()) == [["self_reported"]]


def test_traces_that_are_sent_along_make_a_run_verified_by_a_worker_that_then_stops(
    opened: Callable[..., Leaderboard], recorded: Path
) -> None:
    leaderboard = opened()
    token = leaderboard.token("ada")
    page, said = _published(recorded, leaderboard.address, "--traces", "include", token=token)
    assert "a worker recomputes its numbers" in said
    done = ran(["ccl-bench", "board", "worker", str(leaderboard.data), "--until-empty"])
    assert (done.returncode, "1 run recomputed" in done.stderr) == (0, True), done.stderr
    assert leaderboard.runs()[0]["state"] == "verified"
    run = page.rpartition("/")[2]
    said_of_it = leaderboard.asked("GET", f"bundles/{run}").json()["verification"]
    assert said_of_it["state"] == "verified"
    assert "numbers recomputed" in said_of_it["message"]
    assert sorted(path.name for path in (leaderboard.data / "traces" / run).iterdir()) == sorted(
        path.name for path in recorded.iterdir() if path.name != "workload_card.yaml"
    )


def test_a_directory_takes_a_run_without_a_server_or_a_token(recorded: Path, tmp_path: Path) -> None:
    data = tmp_path / "leaderboard-data"
    place, _ = _published(recorded, data)
    files = {path.name for path in (data / "runs" / place.rpartition("/")[2]).iterdir()}
    assert files == {
        "workload_card.yaml",
        "results.json",
        "provenance.json",
        "report.json",
        "history.json",
    }


def test_a_run_whose_card_was_mended_replaces_the_former(recorded: Path, tmp_path: Path) -> None:
    data, card = tmp_path / "data", tmp_path / "workload_card.yaml"
    first, _ = _published(recorded, data)
    text = (EXAMPLE / "workload_card.yaml").read_text(encoding="utf-8")
    card.write_text(text.replace("A Llama-like decoder", "A small decoder like Llama"), encoding="utf-8")
    second, said = _published(recorded, data, "--workload-card", str(card))
    old, new = (place.rpartition("/")[2] for place in (first, second))
    assert f"it replaces {old[:12]}" in said
    assert Leaderboard(data).states() == {old: ["self_reported", "superseded"], new: ["self_reported"]}
    (_, event) = json.loads((data / "runs" / old / "history.json").read_bytes())
    assert event["superseded_by"] == new


def test_a_withdrawn_run_keeps_its_page_and_is_ranked_no_more(
    leaderboard: Leaderboard, bundle: Files
) -> None:
    token = leaderboard.token("ada")
    run = leaderboard.sent(archive(bundle), token).json()["id"]
    page = f"{leaderboard.address}/runs/{run}"
    at = ["--at", leaderboard.address, "--note", "the wrong link"]
    somebody = invoke(["ccl-bench", "board", "withdraw", page, *at], CCL_BENCH_TOKEN=leaderboard.token("eve"))
    assert (somebody.returncode, leaderboard.runs()[0]["state"]) == (4, "self_reported")
    assert "another submitter" in somebody.stderr
    done = invoke(["ccl-bench", "board", "withdraw", page, *at], CCL_BENCH_TOKEN=token)
    assert (done.returncode, "withdrawn" in done.stdout) == (0, True), done.stderr
    assert leaderboard.runs() == []
    shown = httpx.get(page, timeout=300)
    assert (shown.status_code, "the wrong link" in shown.text) == (200, True)


def test_quarantine_ends_when_a_maintainer_approves(
    opened: Callable[..., Leaderboard], bundle: Files
) -> None:
    leaderboard = opened('quarantine = "first"')
    ada, mae = leaderboard.token("ada"), leaderboard.token("mae", Role.MAINTAINER)
    received = leaderboard.sent(archive(bundle), ada).json()
    assert (received["state"], leaderboard.runs()) == ("quarantined", [])
    assert "when a maintainer approves it" in received["remarks"][0]
    page = f"{leaderboard.address}/runs/{received['id']}"
    assert httpx.get(page, timeout=300).status_code == 404
    at = ["--at", leaderboard.address]
    waiting = invoke(["ccl-bench", "board", "approve", *at], CCL_BENCH_TOKEN=mae)
    assert "quarantined" in waiting.stdout
    done = invoke(["ccl-bench", "board", "approve", page, *at], CCL_BENCH_TOKEN=mae)
    assert done.returncode == 0, done.stderr
    assert [run["state"] for run in leaderboard.runs()] == ["self_reported"]
    second = leaderboard.sent(archive(another(bundle, "second")), ada).json()
    assert second["state"] == "self_reported"


def test_a_dry_run_lists_what_would_leave_and_sends_nothing(recorded: Path, tmp_path: Path) -> None:
    data, run = tmp_path / "data", shutil.copytree(recorded, tmp_path / "run")
    metadata = json.loads((run / "run_metadata.json").read_text(encoding="utf-8"))
    metadata["script"] = "/home/ada-lovelace/train.py"
    (run / "run_metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    command = ["ccl-bench", "publish", str(run), "--to", str(data), "--traces", "include", "--dry-run"]
    done = invoke(command)
    assert done.returncode == 0, done.stderr
    assert re.search(r"run/kineto_trace_0.json.gz +226,666 +kineto", done.stdout)
    assert re.search(r"run/run_metadata.json +a home directory, 1 time +/home/ada-lovelace", done.stdout)
    assert not data.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--to", "http://example.com"], 2, "is not encrypted"),
        (["--to", "pigeon://coop"], 2, "is not the address of a leaderboard"),
        (["--to", "http://127.0.0.1:1"], 4, "cannot be reached"),
        (["--to", "README.md"], 2, "is not a directory"),
        (["--to", "data", "--traces", "somewhere"], 2, "is not an address"),
        (["--to", "data", "--traces", "s3://a/b", "--trace-url", "s3://a/c"], 2, "contradict"),
        (["--to", "http://127.0.0.1:1", "--database", "sqlite:///x"], 2, "--database"),
        (["--to", "http://127.0.0.1:1", "--token-file", "no-such-file"], 4, "no-such-file"),
    ],
)
def test_what_cannot_be_done_ends_with_its_status_and_a_way_out(
    arguments: list[str], status: int, message: str
) -> None:
    done = invoke(["ccl-bench", "publish", str(EXAMPLE), *arguments], CCL_BENCH_TOKEN="cclb_0")
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_says_no_to_a_caller_without_a_token_and_to_a_forged_one(
    leaderboard: Leaderboard, recorded: Path
) -> None:
    command = ["ccl-bench", "publish", str(recorded), "--to", leaderboard.address]
    without = invoke(command, CCL_BENCH_TOKEN="")
    assert (without.returncode, "publishing needs a token" in without.stderr) == (2, True)
    forged = invoke(command, CCL_BENCH_TOKEN=f"cclb_{'0' * 12}_{'A' * 43}")
    assert (forged.returncode, "forged, revoked or expired" in forged.stderr) == (4, True)
    assert leaderboard.runs() == []


def test_a_run_without_a_card_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    trace = tmp_path / "kineto_trace_0.json.gz"
    trace.write_bytes((EXAMPLE / trace.name).read_bytes())
    done = invoke(["ccl-bench", "publish", str(trace), "--to", str(tmp_path / "data")])
    assert (done.returncode, "has no workload card" in done.stderr) == (4, True)
    assert not (tmp_path / "data").exists()


def test_tokens_are_listed_and_revoked_without_being_shown(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    token = invoke(["ccl-bench", "board", "token", data, "ada", "--days", "30"]).stdout.strip()
    listed = invoke(["ccl-bench", "board", "token", data, "--list"]).stdout
    assert "ada" in listed
    _, identity, secret = token.split("_", 2)
    assert secret not in listed
    assert invoke(["ccl-bench", "board", "token", data, "--revoke", identity]).returncode == 0
    assert "revoked" in invoke(["ccl-bench", "board", "token", data, "--list"]).stdout
    missing = invoke(["ccl-bench", "board", "token", data, "--revoke", "0"])
    assert (missing.returncode, "there is no token" in missing.stderr) == (4, True)
