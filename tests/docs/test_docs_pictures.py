"""The pictures of README and manual are there, small, and show what the commands print now."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from commands import ROOT, invoke
from pages import PAGES
from rich.text import Text

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

PICTURES = ROOT / "docs" / "pictures"
SHOWN = {
    (page, target)
    for page in PAGES
    for target in re.findall(r"!\[[^\]]*\]\((?!https?:)([^)]*)\)", page.read_text(encoding="utf-8"))
}
DRAWN_WITH_THE_MANUAL = ROOT / "docs" / "reports.md"
"""Its charts are drawn when the manual is built."""


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drawing", ROOT / "docs" / "draw_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks for itself there
    spec.loader.exec_module(module)
    return module


def _packed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@cache
def _printed(command: str, columns: int) -> str:
    done = invoke(command, FORCE_COLOR="1", COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    return Text.from_ansi(done.stdout).plain


def _description(picture: Path) -> str:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: make test")
    with image.open(picture) as opened:
        return str(opened.info["Description"])


def test_every_picture_of_a_page_is_there_and_every_one_there_is_shown() -> None:
    assert len(SHOWN) >= 6
    places = {(page.parent / target).resolve() for page, target in SHOWN if page != DRAWN_WITH_THE_MANUAL}
    assert {place for place in places if not place.is_file()} == set()
    assert set(PICTURES.iterdir()) - places == set()


def test_every_picture_is_drawn_by_the_script_and_small(drawing: ModuleType) -> None:
    drawn = {*drawing.TERMINALS, *drawing.SCREENSHOTS, *drawing.CHARTS, drawing.TIMELINE}
    assert {file.name for file in PICTURES.iterdir()} == drawn
    assert {file.name for file in PICTURES.iterdir() if file.stat().st_size > 150_000} == set()


def test_a_drawing_loads_nothing() -> None:
    for file in PICTURES.glob("*.svg"):
        addresses = re.findall(r"https?://[^\s\"')]+", file.read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_a_drawn_terminal_shows_what_the_command_prints(drawing: ModuleType) -> None:
    for name, command in drawing.TERMINALS.items():
        texts = ET.parse(PICTURES / name).iterfind(".//{http://www.w3.org/2000/svg}text")
        shown = _packed("".join(text.text or "" for text in texts))
        expected = _packed(f"ccl-bench$ {command}\n{_printed(command, drawing.COLUMNS)}")
        assert shown == expected, "run: make pictures"


def test_a_picture_of_a_report_shows_the_verdict_that_the_command_prints(drawing: ModuleType) -> None:
    printed = _packed(_printed(drawing.TERMINALS["verdict.svg"], drawing.COLUMNS))
    for name in ("report.png", "strip.png"):
        said = _description(PICTURES / name).splitlines()[0]
        assert re.match(r"\d+ ms a step on 8 ", said)
        assert _packed(said) in printed, "run: make pictures"


def test_the_picture_of_a_comparison_shows_what_the_manual_says_of_these_runs() -> None:
    said, _, _ = _description(PICTURES / "comparison.png").partition(" comparable:")
    assert " slower than before" in said
    assert said in (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8"), "run: make pictures"


def test_numbers_said_of_the_drawn_terminal_are_in_it(drawing: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"!\[([^\]]*)\]\(docs/pictures/verdict\.svg\)", text)
    shown = re.findall(r"\d+(?:\.\d+)?", _printed(drawing.TERMINALS["verdict.svg"], drawing.COLUMNS))
    numbers = re.findall(r"\d+(?:\.\d+)?", said)
    assert len(numbers) >= 3
    assert set(numbers) <= set(shown)
