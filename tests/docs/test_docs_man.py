"""The man pages are what the commands say of themselves, and roff shows all of it."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING

import pytest
from commands import ROOT

if TYPE_CHECKING:
    from types import ModuleType

PAGES = ("ccl-bench", "ccl-metrics")


@pytest.fixture
def man(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("man")


@cache
def _page(program: str) -> str:
    """Return what `make man` writes; putting all helps together takes long."""
    return importlib.import_module("man").man_page(program)


@pytest.mark.usefixtures("man")
@pytest.mark.parametrize("program", PAGES)
def test_a_man_page_is_up_to_date(program: str) -> None:
    page = (ROOT / "docs" / "man" / f"{program}.1").read_text(encoding="utf-8")
    assert page == _page(program), "run: make man"


@pytest.mark.parametrize("program", PAGES)
def test_a_man_page_is_shown_without_a_warning(program: str) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed: apt-get install groff-base")
    page = ROOT / "docs" / "man" / f"{program}.1"
    shown = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", page], capture_output=True, text=True, check=True
    )
    assert shown.stderr == ""
    assert shown.stdout.count("ccl-metrics examples/runs/llama-tiny-pp4-gloo --all") == (
        program != "ccl-bench"
    )


@pytest.mark.usefixtures("man")
def test_a_command_within_a_command_has_its_part() -> None:
    page = _page("ccl-bench")
    assert r".SS ccl\-bench baseline set" in page
    assert r".SS ccl\-bench demo" in page


@pytest.mark.parametrize(
    ("text", "escaped"), [(".TH", r"\&.TH"), ("a-b", r"a\-b"), ("'x'", r"\(aqx\(aq"), ("\\n", r"\en")]
)
def test_no_text_is_a_command_of_roff(man: ModuleType, text: str, escaped: str) -> None:
    assert man._escaped(text) == escaped
