"""Files that commands wrote: which may be replaced."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import options
from ccl_bench.storage import written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCL_BENCH_CACHE", str(tmp_path / "cache"))


def test_only_a_file_as_it_was_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, other = tmp_path / "page.html", tmp_path / "other.md"
    page.write_text("page")
    other.write_text("page")  # the same content in another place is not its own
    options.show_written(page)
    assert capsys.readouterr().out == f"{page}  opens in a browser\n"
    monkeypatch.chdir(tmp_path)
    assert options.file_to_write("page.html", force=False).name == "page.html"
    for path in (other, tmp_path):
        with pytest.raises(UsageError):
            options.file_to_write(str(path), force=False)
    page.write_text("page, with remarks")
    with pytest.raises(UsageError) as refused:
        options.file_to_write(str(page), force=False)
    assert "--force" in (refused.value.fix or "")
    assert options.file_to_write(str(page), force=True) == page


def test_the_oldest_files_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_MOST", 2)
    paths = [tmp_path / str(number) for number in range(3)]
    for path in paths:
        path.write_text(path.name)
        written.remember(path)
    assert [written.is_as_written(path) for path in paths] == [False, True, True]
    written.remember(paths[1])
    (tmp_path / "3").write_text("")
    written.remember(tmp_path / "3")
    assert [written.is_as_written(path) for path in paths] == [False, True, False]


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "\x00"])
def test_a_damaged_memory_recognises_nothing_and_fails_nothing(content: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("page")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / written.FILE).write_text(content)
    assert not written.is_as_written(page)
    written.remember(page)
    assert written.is_as_written(page)
    assert len(json.loads((tmp_path / "cache" / written.FILE).read_text())) <= 2


def test_without_a_cache_nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("page")
    monkeypatch.setenv("CCL_BENCH_CACHE", str(page / "folder"))
    written.remember(page)
    assert not written.is_as_written(page)
