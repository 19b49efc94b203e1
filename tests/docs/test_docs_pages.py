"""The manual is whole: links lead somewhere, examples are the tested ones, every finding is explained."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import ROOT
from pages import PAGES, blocks
from shared import made_once

from ccl_bench import diagnosis, metrics
from ccl_bench.cli.commands import COMMANDS

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLE_PLUGIN = ROOT / "tests" / "system" / "plugins" / "ccl-bench-example-plugin"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)")

NOT_CODES = {"utf-8"}
"""Texts that are written like the code of a finding, in modules that make findings."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    sys.path.append(str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("manual_generator", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def manual(generator: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the whole manual, generated pages included."""
    folder, _ = made_once(tmp_path_factory, "manual", generator.generate)
    return folder


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in headings}


def _broken_links(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    broken = []
    for target, anchor in LINK.findall(text):
        place = page.parent / target if target else page
        if not place.exists() or (anchor and anchor not in _anchors(place.resolve())):
            broken.append(f"{page.name}: {target}#{anchor}")
    return broken


def test_every_link_between_the_pages_of_the_site_leads_somewhere(manual: Path) -> None:
    pages = sorted((manual / "pages").rglob("*.md"))
    assert len(pages) > 20
    assert [link for page in pages for link in _broken_links(page)] == []


def test_every_link_of_the_files_on_top_leads_somewhere() -> None:
    on_top = [page for page in PAGES if page.parent == ROOT]
    assert [link for page in on_top for link in _broken_links(page) if "#" not in link.rstrip("#")] == []


def test_every_page_of_the_manual_is_in_its_contents(manual: Path) -> None:
    listed = (manual / "zensical.toml").read_text(encoding="utf-8")
    pages = (page.relative_to(manual / "pages").as_posix() for page in (manual / "pages").rglob("*.md"))
    assert [page for page in pages if f'"{page}"' not in listed] == []


def test_every_metric_has_a_page_with_its_formula(manual: Path) -> None:
    for name in metrics.load().names():
        page = (manual / "pages" / "metrics" / f"{name}.md").read_text(encoding="utf-8")
        assert "## Formula\n\n    " in page
        assert "## Reference" in page


def test_every_diagnosis_has_a_page_with_its_assumptions(manual: Path) -> None:
    for name in diagnosis.load().names():
        page = (manual / "pages" / "diagnoses" / f"{name}.md").read_text(encoding="utf-8")
        assert "## How it is seen" in page
        rows = page.split("## Inputs and assumptions\n\n", 1)[1].splitlines()
        assert rows[0] == "| made in | assumption | checked by | no number where |"
        assert f"`{name}`" in rows[2]
        assert any("[`ranks-missing`](../findings.md)" in row for row in rows)


def test_every_command_is_in_the_reference(manual: Path) -> None:
    reference = (manual / "pages" / "cli-reference.md").read_text(encoding="utf-8")
    shown = re.findall(r"^## (.*)$", reference, flags=re.MULTILINE)
    assert shown[:2] == ["ccl-metrics", "ccl-bench"]
    listed = [name for name in COMMANDS if name != "baseline"]
    assert {f"ccl-bench {name}" for name in listed} < set(shown[2:])
    assert shown.count("ccl-bench board") == shown.count("ccl-bench baseline set") == 1


def test_every_page_starts_with_what_its_reader_can_do_afterwards() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        _, first, _ = page.read_text(encoding="utf-8").split("\n\n", 2)
        assert first.startswith("After this page you can "), page
        assert ". " not in first, f"{page}: one sentence"


def test_every_page_has_its_place_in_the_navigation(generator: ModuleType, manual: Path) -> None:
    settings = (manual / "zensical.toml").read_text(encoding="utf-8")
    written = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert {name for name in written if f'"{name}"' not in settings} == set()


def test_the_site_builds_without_a_warning(manual: Path) -> None:
    program = shutil.which("zensical", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("zensical is not installed: make docs")
    built = subprocess.run(
        [program, "build", "--strict", "--config-file", str(manual / "zensical.toml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "https://fonts." not in (manual / "site" / "index.html").read_text(encoding="utf-8")


def test_the_examples_for_contributors_are_those_of_the_tested_package() -> None:
    files = [path for path in EXAMPLE_PLUGIN.rglob("*") if path.suffix in {".py", ".toml"}]
    tested = "\n".join(path.read_text(encoding="utf-8") for path in files)
    shown = [b for b in blocks(ROOT / "CONTRIBUTING.md") if b.language in {"python", "toml"}]
    shown = [block for block in shown if "def test_" not in block.body]  # run by tests/system/plugins
    assert len(shown) >= 7
    assert [str(block) for block in shown if block.body not in tested] == []


@cache
def _codes_in_source() -> set[str]:
    """Return every text that is written like a code, in the modules that make findings."""
    found: set[str] = set()
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for text in (text for text in texts if re.search(r"(?:Finding|Issue|unread_trace)\(", text)):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"\A[a-z]+(?:-[a-z0-9]+)+\Z", node.value))
    return found - NOT_CODES


def _codes_explained() -> set[str]:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([a-z0-9-]+)` \| (?:note|warning|error) \|", text, flags=re.MULTILINE))


def test_every_finding_is_explained() -> None:
    assert _codes_in_source() - _codes_explained() == set()


def test_no_finding_is_explained_that_does_not_exist() -> None:
    assert _codes_explained() - _codes_in_source() == set()
