"""The native readers pass all of their own tests where each access to memory is watched: `make fuzz`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_kineto_native as kineto
import test_sqlite_native as sqlite
from both_ways import needs_native
from fuzzing import NATIVE, ROOT, sanitized_library, watching

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: apt-get install gcc")
pytestmark = [needs_native, needs_gcc]

OWN = ("native", "numbers", "damage", "pieces", "truncation")
"""The groups of tests whose traces the native reader takes or refuses."""
ELSEWHERE = "not outside and not recorded and not version and not missing and not compiles"
"""Tests that compile a library or choose another one, and those of the corpus."""


def own_tests(library: Path, groups: tuple[str, ...], chosen: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    files = [str(here / f"test_kineto_{group}.py") for group in groups]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "native_library"]
    options = ["-q", "-x", "-s", *plugins, "-k", chosen]
    environment = watching()
    environment |= {
        "CCL_BENCH_TESTED_LIBRARY": str(library),
        "PYTHONPATH": f"{here}:{environment.get('PYTHONPATH', '')}",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_own_tests_pass_under_the_sanitizers(tmp_path: Path) -> None:
    done = own_tests(sanitized_library(tmp_path), OWN, ELSEWHERE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100


def test_its_own_tests_would_show_an_access_beyond_its_memory(tmp_path: Path) -> None:
    source = tmp_path / "native"
    shutil.copytree(NATIVE, source)
    text = (source / "rows.c").read_text(encoding="utf-8")
    assert text.count("room * 8 + PADDING") == 1
    (source / "rows.c").write_text(text.replace("room * 8 + PADDING", "room / 512"), encoding="utf-8")
    done = own_tests(sanitized_library(tmp_path, source=source), ("native",), "ordinary")
    assert done.returncode
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


@pytest.mark.parametrize("change", kineto.BEYOND.values(), ids=kineto.BEYOND)
def test_an_access_outside_of_the_memory_of_rows_would_be_seen(tmp_path: Path, change: object) -> None:
    done = kineto.ended_beyond(tmp_path, change)
    assert done.returncode
    assert "ERROR: AddressSanitizer: " in done.stderr


@pytest.mark.parametrize("change", sqlite.BEYOND.values(), ids=sqlite.BEYOND)
def test_an_access_outside_of_a_page_would_be_seen(tmp_path: Path, change: object) -> None:
    assert sqlite.ended_beyond(tmp_path, change).returncode
