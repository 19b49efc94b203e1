"""Merge requests to boards in git, and boards that cannot be written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import EXAMPLE, ROOT, invoke
from leaderboard_bundles import UNITS, Made, changed, placed, revision_now
from ruamel.yaml import YAML

from ccl_bench.leaderboard.bundle.format import (
    HISTORY,
    REPORT,
    RESULTS,
    Bundle,
    bundle_id,
    new_event,
    write_history,
)
from ccl_bench.leaderboard.bundle.origin import new_key, sign_bundle
from ccl_bench.leaderboard.federation import read_only
from ccl_bench.leaderboard.reported.observations import Reported, packaged, write_reported
from ccl_bench.leaderboard.store import State

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import CompletedProcess

STEP = "iteration_wall_clock_time"
REVISIONS = {"metric_revisions": {STEP: revision_now(STEP)}}
SLOW, FAST = (Made(name=name, values={STEP: value}) for name, value in (("slow", 0.5), ("fast", 0.4)))
"""They are on the board, and would be refused today: their provenance states no revisions."""
BETWEEN = Made(name="between", values={STEP: 0.45}, stated=REVISIONS)


def _git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _commit(board: Path, message: str) -> None:
    _git(board, "add", "-A")
    _git(board, "commit", "-q", "-m", message)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """Return a repository with a board of two rows, on a branch for a merge request."""
    folder = tmp_path / "board"
    folder.mkdir()
    _git(folder, "init", "-q", "-b", "main")
    placed(folder, [SLOW, FAST])
    _commit(folder, "two rows")
    _git(folder, "checkout", "-q", "-b", "request")
    return folder


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Return a folder with a board of two rows; `now` is a copy of it to change."""
    placed(tmp_path / "earlier", [SLOW, FAST])
    shutil.copytree(tmp_path / "earlier", tmp_path / "now")
    return tmp_path / "earlier"


def _reviewed(earlier: Path, *words: str) -> CompletedProcess[str]:
    now = earlier.parent / "now"
    return invoke(["ccl-bench", "board", "review", str(now), "--since", str(earlier), *words])


def _folder(board: Path, name: str) -> Path:
    (folder,) = (each for each in (board / "runs").iterdir() if Bundle(each).provenance.run == name)
    return folder


def _action() -> Any:
    return YAML(typ="safe").load(ROOT / "actions/board/action.yml")


def _ran_action(work: Path, **given: str) -> tuple[int, dict[str, str], str]:
    """Run the last step of the Action as GitHub does; return status, outputs and the job's summary."""
    step = _action()["runs"]["steps"][-1]
    inputs = {"traces": "", "summary": "review.md", "pull-request": "", "token": ""} | given

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)

    environment = {
        **os.environ,
        **{name: filled(text) for name, text in step["env"].items()},
        "GITHUB_OUTPUT": str(work / "outputs"),
        "GITHUB_STEP_SUMMARY": str(work / "job.md"),
        "GITHUB_ACTION_PATH": str(ROOT / "actions/board"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    shell = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    ended = subprocess.run(shell, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
    outputs = dict(line.split("=", 1) for line in (work / "outputs").read_text().splitlines())
    return ended.returncode, outputs, (work / "job.md").read_text()


def test_the_action_comments_new_rows_with_their_ranks(board: Path, tmp_path: Path) -> None:
    _git(board, "checkout", "-q", "main")
    placed(board, [changed(BETWEEN, name="merged meanwhile")])
    _commit(board, "another request")
    _git(board, "checkout", "-q", "request")
    placed(board, [BETWEEN])
    _commit(board, "a row")
    status, outputs, comment = _ran_action(tmp_path, board="board", since="main")
    assert status == 0, comment
    assert outputs == {"outcome": "passed", "exit-status": "0", "summary": "review.md"}
    assert comment == (tmp_path / "review.md").read_text()
    assert "## 1 row added: the board lists 3 runs" in comment
    fast, slow = (_folder(board, name).name[:12] for name in ("fast", "slow"))
    assert rf"| iteration\_wall\_clock\_time | 0.45 | s | 2 of 3 | 0.4 (`{fast}`) |" in comment
    moved = comment.partition("### Ranks that change")[2]
    assert rf"| iteration\_wall\_clock\_time | slow (`{slow}`) | 2 of 2 | 3 of 3 |" in moved
    assert fast not in moved


def test_the_action_refuses_an_edited_bundle(board: Path, tmp_path: Path) -> None:
    results = _folder(board, "slow") / RESULTS
    results.write_text(results.read_text().replace("0.5", "0.1"))
    _commit(board, "faster")
    status, outputs, comment = _ran_action(tmp_path, board="board", since="main")
    assert (status, outputs["outcome"]) == (4, "refused")
    assert "the files changed after they were published" in comment
    assert "Fix: " in comment


def test_the_action_states_why_a_board_was_not_reviewed(board: Path, tmp_path: Path) -> None:
    status, outputs, comment = _ran_action(tmp_path, board="board", since="--output=x")
    assert (status, outputs["outcome"]) == (2, "failed")
    assert "## The board was not reviewed" in comment
    assert "no folder and no revision" in comment
    assert not (board / "x").exists()


def test_the_action_names_only_inputs_and_outputs_that_exist() -> None:
    action, text = _action(), (ROOT / "actions/board/action.yml").read_text()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])
    script = (ROOT / "scripts/review_in_pipeline.sh").read_text()
    options = set(re.findall(r"\$\{([A-Z_]+):", script)) - {"GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"}
    assert set(action["runs"]["steps"][-1]["env"]) - {"BOARD", "SINCE", "GH_TOKEN"} == options
    for each in action["outputs"].values():
        name = re.fullmatch(r"\$\{\{ steps\.review\.outputs\.([\w-]+) \}\}", each["value"])
        assert name
        assert f" {name[1]} " in script


def _rewrite(folder: Path) -> None:
    write_history(folder, [new_event(State.SELF_REPORTED, "somebody else")])


def _claim(state: State, **more: str) -> Callable[[Path], None]:
    return lambda folder: write_history(folder, [*Bundle(folder).history, new_event(state, "server", **more)])


def _link(folder: Path) -> None:
    folder.rename(folder.parent.parent / "elsewhere")
    folder.symlink_to(folder.parent.parent / "elsewhere")


def _add(folder: Path) -> None:
    (folder / "run.sh").write_text("")


def _leave_a_file(folder: Path) -> None:
    (folder.parent / "notes").write_text("")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (shutil.rmtree, "was published and is removed"),
        (_rewrite, "its history was rewritten"),
        (lambda folder: (folder / HISTORY).unlink(), "its history was rewritten"),
        (_claim(State.VERIFIED), "its history states that a server verified it"),
        (_claim(State.SELF_REPORTED, key="0" * 16), "is missing, but its history states that it was signed"),
        (_claim(State.SUPERSEDED, superseded_by="0" * 64), "which is not on the board"),
        (_link, "is not a folder"),
        (_add, "does not belong in a bundle"),
        (_leave_a_file, "is not a bundle"),
    ],
)
def test_what_was_published_stays(earlier: Path, change: Callable[[Path], object], reason: str) -> None:
    change(_folder(earlier.parent / "now", "slow"))
    ended = _reviewed(earlier)
    assert ended.returncode == 4
    assert "**Refused.** runs/" in ended.stdout
    assert reason in ended.stdout
    assert str(earlier.parent) not in ended.stdout


def test_a_row_is_withdrawn_by_its_history_and_may_then_be_removed(earlier: Path) -> None:
    now = earlier.parent / "now"
    run = _folder(now, "fast")
    write_history(run, [*Bundle(run).history, new_event(State.WITHDRAWN, "Eve", "wrong *link*")])
    ended = _reviewed(earlier)
    assert ended.returncode == 0, ended.stdout
    assert "submitter Ada Lovelace, unsigned" in ended.stdout
    assert r"- withdrawn by Eve: wrong \*link\*" in ended.stdout
    assert "| 2 of 2 | 1 of 1 |" in ended.stdout
    shutil.rmtree(earlier)
    shutil.copytree(now, earlier)
    shutil.rmtree(run)
    assert _reviewed(earlier).returncode == 0
    assert _reviewed(now).stdout.splitlines()[2] == "## No row changes"


def test_traces_of_others_and_of_listed_rows_are_refused(earlier: Path) -> None:
    other = changed(BETWEEN, name="slow", submitter="Eve")
    again = changed(BETWEEN, name="fast")
    placed(earlier.parent / "now", [other, again])
    ended = _reviewed(earlier)
    assert ended.returncode == 4
    slow, fast = (_folder(earlier, name).name[:12] for name in ("slow", "fast"))
    assert f"the same traces were published by Ada Lovelace as {slow}" in ended.stdout
    assert f"replaces {fast}, which is still listed" in ended.stdout


def test_a_signature_is_checked_with_the_key_that_was_there_before(earlier: Path, tmp_path: Path) -> None:
    now, key = tmp_path / "now", new_key()
    (name,) = placed(now, [BETWEEN])
    run = now / "runs" / name
    sign_bundle(run, key, "Ada Lovelace")
    write_history(run, [new_event(State.SELF_REPORTED, "Ada Lovelace", key=key.public.id)])
    (now / "keys").mkdir()
    key.public.write(now / "keys/Ada Lovelace.pub")
    refused = _reviewed(earlier)
    assert refused.returncode == 4
    assert "is signed by Ada Lovelace, whose key the board lacks" in refused.stdout
    shutil.copytree(now / "keys", earlier / "keys")
    accepted = _reviewed(earlier)
    assert accepted.returncode == 0, accepted.stdout
    assert "signed by Ada Lovelace" in accepted.stdout
    (earlier / "keys/Ada Lovelace.pub").unlink()
    new_key().public.write(earlier / "keys/Ada Lovelace.pub")
    assert "it is signed with the key" in _reviewed(earlier).stdout


def test_text_of_strangers_is_escaped(earlier: Path) -> None:
    evil = "<img src=x> [a](http://b) | `c` @all"
    placed(earlier.parent / "now", [changed(BETWEEN, name="<b>|[n](u)", submitter=evil)])
    ended = _reviewed(earlier)
    assert ended.returncode == 0, ended.stdout
    assert not re.search(r"(?<!\\)<(?:img|b)|(?<!\\)\]\(|`c`|@all", ended.stdout)


def test_a_long_comment_is_cut_and_shows_first_what_is_refused(earlier: Path) -> None:
    now = earlier.parent / "now"
    values = dict.fromkeys(UNITS, 1.0)
    stated = {"metric_revisions": {name: revision_now(name) for name in values}}
    placed(now, [Made(name=f"run-{number:02}", values=values, stated=stated) for number in range(90)])
    (now / "runs/zzz").write_text("")
    ended = _reviewed(earlier)
    assert ended.returncode == 4
    assert len(ended.stdout.encode()) < 65_536
    assert ended.stdout.splitlines()[4] == "### zzz, added"
    assert "did not fit" in ended.stdout.splitlines()[-1]


def test_a_forged_number_is_detected_by_recomputing(tmp_path: Path) -> None:
    board = tmp_path / "now"
    assert invoke(["ccl-bench", "publish", str(EXAMPLE), "--to", str(board)]).returncode == 0
    (tmp_path / "earlier/runs").mkdir(parents=True)
    (honest,) = (board / "runs").iterdir()
    forged = shutil.copytree(honest, tmp_path / "forged")
    results = json.loads((forged / RESULTS).read_text())
    number = next(each for each in results if each["metric"] == STEP)
    report = json.loads((forged / REPORT).read_text())
    same = next(each for each in report["results"] if each["metric"] == STEP)
    true = number["value"]
    number["value"] = same["value"] = true / 2
    (forged / RESULTS).write_text(json.dumps(results))
    (forged / REPORT).write_text(json.dumps(report))
    forged.rename(board / "runs" / bundle_id(forged))
    ended = _reviewed(tmp_path / "earlier", "--traces", str(EXAMPLE))
    assert ended.returncode == 1, ended.stdout
    assert "1 row of 2 differs when recomputed" in ended.stdout
    escaped = STEP.replace("_", r"\_")
    assert f"{escaped}: claimed {true / 2:.9g}, recomputed {true:.9g} s" in ended.stdout
    assert ended.stdout.count("numbers recomputed with ccl-bench") == 1


def test_a_board_that_cannot_be_written_is_read(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def access(path: Path, mode: int) -> bool:
        return not (path == earlier and mode == os.W_OK)

    monkeypatch.setattr(read_only.os, "access", access)
    (earlier / "reported").mkdir()
    of_others = Reported(packaged()[1].source, packaged()[1].rows.head(1))
    write_reported(earlier / "reported" / "ccl-bench-2026.parquet", of_others)
    before = sorted(earlier.rglob("*"))
    for target in ("first", "second"):
        words = ["ccl-bench", "board", "site", str(earlier), "-o", str(tmp_path / target)]
        ended = invoke(words, CCL_BENCH_CACHE=str(tmp_path / "cache"))
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / target / "sources" / "ccl-bench-2026.html").exists()
    assert sorted(earlier.rglob("*")) == before
    assert len([*(tmp_path / "cache/boards").iterdir()]) == 1
