"""The build makes the scripts of charts; without the package that it makes them with, only pictures lack."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ccl_bench.base.errors import UsageError
from ccl_bench.cli.bench import main
from ccl_bench.report.render import html

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
NOTICES = (ROOT / "src/ccl_bench/report/render/assets/vega-licences.txt").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def build() -> Any:
    """Return the module of the build hook."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the package that draws pictures."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    html.library.cache_clear()
    yield
    html.library.cache_clear()


def test_the_build_makes_the_scripts_of_the_package(build: Any, tmp_path: Path) -> None:
    build.bundle_charts(tmp_path / "vega.js")
    assert (tmp_path / "vega.js").read_text(encoding="utf-8") == html.library()
    assert [path.name for path in tmp_path.iterdir()] == ["vega.js"]
    assert "</script" not in html.library()


def test_the_notices_are_those_of_the_libraries_in_the_scripts() -> None:
    vl_convert = pytest.importorskip("vl_convert", reason="pip install 'ccl-bench[images]'")
    needs = [*PROJECT["build-system"]["requires"], *PROJECT["dependency-groups"]["wheels"]]
    pinned = [need for need in needs if need.startswith("vl-convert")]
    assert pinned == [f"vl-convert-python=={version('vl-convert-python')}"] * 2
    named = dict(re.findall(r"(vega[a-z-]*) (\d+\.\d+\.\d+)", NOTICES))
    assert named["vega"] == vl_convert.get_vega_version()
    assert named["vega-embed"] == vl_convert.get_vega_embed_version()
    assert named["vega-themes"] == vl_convert.get_vega_themes_version()
    assert f'"{named["vega-lite"]}"' in html.library()
    assert NOTICES.count("Redistribution and use in source and binary forms") == 3
    assert "src/ccl_bench/report/render/assets/vega-licences.txt" in PROJECT["project"]["license-files"]


def test_a_build_without_the_package_says_what_to_do(build: Any, absent: None, tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="fix: install a wheel of ccl-bench"):
        build.bundle_charts(tmp_path / "vega.js")
    assert [*tmp_path.iterdir()] == []


def test_pages_need_no_package_and_pictures_name_theirs(
    absent: None, example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(example), "-o", str(tmp_path / "report.html")]) == 0
    assert "window.vegaEmbed" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert main(["report", str(example), "--charts", str(tmp_path / "charts")]) == 2
    assert "fix: pip install 'ccl-bench[images]'" in capsys.readouterr().err
    assert not (tmp_path / "charts").exists()


def test_a_checkout_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch, absent: None) -> None:
    monkeypatch.setattr(html, "LIBRARY", "absent.js")
    with pytest.raises(UsageError, match="installing ccl-bench makes them"):
        html.library()
