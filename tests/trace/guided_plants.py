"""Fuzzing that is guided by the branches of the native reader finds what lies behind them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from both_ways import needs_native
from fuzzing import NATIVE
from guided_native import guided, instrumented

if TYPE_CHECKING:
    from pathlib import Path

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: apt-get install gcc")
pytestmark = [needs_native, needs_gcc]

RUNS = 50_000
"""Pieces among which each planted error is found, mostly at the first attempt."""
SEEDS = (1, 2, 3, 4)


PLANTED = {
    "a read behind the piece, for names that begin with a tilde": (
        "    event->present |= bit(word->slot);\n    if (text->is_odd)",
        """    if (word->slot == NAME && text->at[0] == '~')
        event->has_arguments = text->at[1 << 20];
""",
        "AddressSanitizer",
    ),
    "a text cut short, for those in a row that begin with a tilde": (
        "            int64_t number = texts_number(",
        """            Text *text = &event->texts[slot];
            if (text->at[0] == '~') text->length = 3;
""",
        "differ",
    ),
}


@pytest.fixture(autouse=True)
def _tools() -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: make test")
    pytest.importorskip("ziglang", reason="ziglang is not installed: make test")


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_an_error_behind_a_key_is_found(plant: tuple[str, str, str], tmp_path: Path) -> None:
    place, error, finding = plant
    source = tmp_path / "native"
    shutil.copytree(NATIVE, source)
    text = (source / "rows.c").read_text(encoding="utf-8")
    assert text.count(place) == 1
    (source / "rows.c").write_text(text.replace(place, error + place), encoding="utf-8")
    library = instrumented(tmp_path, source)
    for seed in SEEDS:
        found = tmp_path / f"found-{seed}"
        done = guided(library, found, f"-runs={RUNS}", f"-seed={seed}")
        if done.returncode:
            break
    assert finding in done.stderr, done.stderr[-2000:]


def test_the_reader_itself_is_found_sound_by_as_many_branches(tmp_path: Path) -> None:
    done = guided(instrumented(tmp_path), tmp_path / "found", "-runs=3000", "-seed=1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "stat::number_of_executed_units: 3" in done.stderr
