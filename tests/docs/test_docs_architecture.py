"""The page on architecture is in step with the code: its floors are enforced, its paths exist."""

from __future__ import annotations

import re
import tomllib

from commands import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "ccl_bench"
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")


def _section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_floors_are_those_that_imports_obey() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each["type"] == "layers"]
    enforced = [name.strip(" ()") for layer in layers for name in layer.split("|")]
    assert re.findall(r"^\| `(\w+)` \|", _section("Floors"), re.MULTILINE) == enforced


def test_every_path_on_the_page_exists() -> None:
    paths = set(PATH.findall(PAGE))
    assert len(paths) > 40
    assert {path for path in paths if not (ROOT / path).exists() and not (SOURCE / path).exists()} == set()


def test_ten_questions_are_answered_with_paths() -> None:
    rows = re.findall(r"^\| (Where .*\?) \| (.*) \|$", _section("Ten questions"), re.MULTILINE)
    assert len(rows) == 10
    assert all(PATH.findall(answer) for _, answer in rows)
