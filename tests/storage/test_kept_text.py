"""A text that takes long to make is made once, and again where what is kept is not what was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccl_bench.report.render import html
from ccl_bench.storage import kept_text

if TYPE_CHECKING:
    from pathlib import Path


class Maker:
    """Makes a text and counts how often."""

    def __init__(self, text: str = "vägä\n\n") -> None:
        self.text, self.times = text, 0

    def __call__(self) -> str:
        self.times += 1
        return self.text


def test_a_text_is_made_once() -> None:
    make = Maker()
    assert [kept_text("a.js", make) for _ in range(3)] == [make.text] * 3
    assert make.times == 1


def test_each_name_has_its_own() -> None:
    assert kept_text("a.js", Maker("1")) == "1"
    assert kept_text("b.js", Maker("2")) == "2"


@pytest.mark.parametrize("damage", [b"", b"\n", b"0" * 64 + b"\nalert(1)", b"\xff\xfe", None])
def test_a_damaged_text_is_made_again(own_cache: Path, damage: bytes | None) -> None:
    make = Maker()
    kept_text("a.js", make)
    path = own_cache / "texts" / "a.js"
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert kept_text("a.js", make) == make.text
    assert make.times == 2
    assert kept_text("a.js", make) == make.text
    assert make.times == 2


def test_a_cache_that_cannot_be_written_is_no_error(own_cache: Path) -> None:
    (own_cache / "texts").write_text("a file where the folder should be")
    make = Maker()
    assert [kept_text("a.js", make) for _ in range(2)] == [make.text] * 2


def test_the_script_of_pages_is_the_same_kept_or_made(monkeypatch: pytest.MonkeyPatch) -> None:
    html.library.cache_clear()
    made = html.library()
    html.library.cache_clear()
    monkeypatch.setattr(html, "_bundle", lambda: pytest.fail("made again"))
    assert html.library() == made
