"""Nobody but the operator reads the data directory, its backup, tokens and keys, whatever the umask."""

from __future__ import annotations

import stat
import sys
from typing import TYPE_CHECKING

import pytest
from commands import invoke, ran
from publishing_archives import archive
from publishing_server import Leaderboard
from umasks import UMASKS, not_private, under_umask

from ccl_bench.leaderboard.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from publishing_archives import Files

    from ccl_bench.leaderboard.bundle.upload import Upload


@pytest.mark.parametrize("umask", (UMASKS[0], UMASKS[-1]), ids=oct)
def test_everything_in_the_data_directory_and_its_backup_is_its_owners_alone(
    umask: int, whole: Files, tmp_path: Path
) -> None:
    data, copy = tmp_path / "made" / "data", tmp_path / "copies" / "copy"
    with under_umask(umask):
        open_store(data, create=True).engine.dispose()
        leaderboard = Leaderboard(data)
        try:
            leaderboard.serve()
            sent = leaderboard.sent(archive(whole), leaderboard.token("ada"))
            assert sent.status_code == 201, sent.text
            withdrawn = leaderboard.asked(
                "POST", f"bundles/{sent.json()['id']}/withdraw", leaderboard.token("ada")
            )
            assert withdrawn.status_code == 200, withdrawn.text
            assert invoke(["ccl-bench", "board", "backup", str(data), "-o", str(copy)]).returncode == 0
            assert not_private(data.parent) == {}
        finally:
            leaderboard.close()
        assert not_private(copy.parent) == {}


def test_a_run_that_is_published_into_a_directory_is_its_owners_alone(parcel: Upload, tmp_path: Path) -> None:
    from ccl_bench.leaderboard.publishing.client import DirectoryDestination

    with under_umask(0):
        DirectoryDestination(tmp_path / "data").take(parcel, tmp_path, None)
    assert not_private(tmp_path / "data") == {}


def test_keys_and_tokens_are_their_owners_alone(tmp_path: Path) -> None:
    with under_umask(0):
        assert invoke(["ccl-bench", "sign", "new", "ada"], folder=tmp_path).returncode == 0
        script = f"{sys.executable} -m ccl_bench token {tmp_path / 'data'} ada > {tmp_path / 'ada.token'}"
        assert ran(["sh", "-c", script]).returncode == 0
    assert (tmp_path / "ada.token").read_text(encoding="utf-8").startswith("cclb_")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("ada.*")}
    assert modes == {"ada.key": 0o600, "ada.pub": 0o666, "ada.token": 0o600}


def test_a_directory_that_is_open_to_others_is_reported_and_stays_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(0o755)
    for mode, is_reported in ((0o755, True), (0o700, False)):
        data.chmod(mode)
        done = invoke(["ccl-bench", "board", "worker", str(data), "--until-empty"])
        assert done.returncode == 0, done.stderr
        assert (f"chmod 700 {data}" in done.stderr) is is_reported
        assert stat.S_IMODE(data.stat().st_mode) == mode


def test_a_site_is_readable_for_a_web_server(tmp_path: Path) -> None:
    open_store(tmp_path / "data", create=True).engine.dispose()
    with under_umask(0o022):
        done = invoke(["ccl-bench", "board", "site", str(tmp_path / "data"), "-o", str(tmp_path / "public")])
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "public", *(tmp_path / "public").rglob("*")):
        assert path.stat().st_mode & 0o005 == (0o005 if path.is_dir() else 0o004), path
