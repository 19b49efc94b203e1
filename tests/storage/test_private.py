"""What others may not read is made so under any umask, and what exists keeps its permissions."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from umasks import UMASKS, not_private, under_umask

from ccl_bench import storage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_what_is_made_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    with under_umask(umask):
        folder = storage.private_folder(tmp_path / "data" / "runs")
        with storage.open_private(folder / "new", "xb"):
            pass
        with storage.open_private(folder / "log", "ab") as stream:
            stream.write(b"line\n")
        with storage.write_atomically(folder / "replaced") as temporary:
            temporary.write_bytes(b"content")
        made = storage.temporary_folder(folder)
        (made / "below").mkdir()
        (made / "below" / "file").touch()
        storage.make_private(made)
    assert not_private(tmp_path / "data") == {}


def test_what_exists_keeps_its_permissions(tmp_path: Path) -> None:
    folder, log = tmp_path / "shared", tmp_path / "shared" / "log"
    folder.mkdir(0o750)
    log.touch(0o640)
    assert storage.private_folder(folder) == folder
    with storage.open_private(log, "ab") as stream:
        stream.write(b"line\n")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, log)] == [0o750, 0o640]
    with pytest.raises(FileExistsError):
        storage.open_private(log, "xb")
    assert [storage.is_open_to_others(path) for path in (folder, tmp_path)] == [True, False]


def test_a_link_gives_its_target_no_other_permissions(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch(0o644)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(target)
    storage.make_private(tmp_path / "folder")
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_an_open_file_is_taken_from_others(tmp_path: Path) -> None:
    with (tmp_path / "token").open("w", encoding="utf-8") as stream:
        (tmp_path / "token").chmod(0o664)
        storage.close_to_others(stream)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
