"""Copies are reported by direction, with advice that fits; a few inside a device are part of the work."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from injected import SHARDED, only, step_s

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.run import open_run
from ccl_bench.testing import Copy, trace_path, write_run

WRITTEN = "Memcpy HtoD (Pinned -> Device)"
NS = 1_000_000
ALONE = replace(SHARDED, dp_shard=1)
"""One rank, whose first kernel waits for the copy of its input and for nothing else."""

ADVICE = {
    WRITTEN: ("Copies to the device hold up the step", "separate stream"),
    "Memcpy HtoD (Pageable -> Device)": (
        "Copies of pageable memory to the device hold up the step",
        "pin_memory",
    ),
    "Memcpy DtoH (Device -> Pinned)": ("Copies to the host hold up the step", "a step later"),
    "Memcpy DtoH (Device -> Pageable)": (
        "Copies to pageable memory of the host hold up the step",
        "pinned tensors",
    ),
    "Memcpy DtoD (Device -> Device)": ("Copies inside the device take part of the step", "contiguous()"),
    "Memcpy PtoP (Device -> Device)": (
        "Copies between devices hold up the step",
        "keep tensors on the device",
    ),
    "Memset (Device)": ("Memory sets take part of the step", "set_to_none=True"),
    "Memcpy (Array -> Array)": ("Copies in an unknown direction hold up the step", "show the direction"),
}
"""Name of a copy → title and part of the advice."""


def _run(folder: Path, ns: int, name: str) -> Path:
    """Write a run whose steps begin with a copy that everything waits for."""
    write_run(replace(ALONE, input_copy=Copy(10_000_000, ns)), folder)
    category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    path = trace_path(folder, 0)
    text = path.read_text(encoding="utf-8")
    assert WRITTEN in text
    path.write_text(text.replace(WRITTEN, name).replace("gpu_memcpy", category), encoding="utf-8")
    return folder


def _gain_s(ns: int) -> float:
    """Return what a copy of 1 ns instead would save in each step, by the plan."""
    took, without = (step_s(replace(ALONE, input_copy=Copy(10_000_000, each))) for each in (ns, 1))
    return took - without


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_fits_the_direction_of_the_copies(name: str, tmp_path: Path) -> None:
    found = only(diagnose(open_run(_run(tmp_path, NS, name)), jobs=1, use_cache=False))
    title, advice = ADVICE[name]
    assert (found.name, found.title) == ("copies_in_step", title)
    assert advice in found.remedy
    assert found.gain_s == pytest.approx(_gain_s(NS), abs=1e-8)


@pytest.mark.parametrize(
    ("name", "worth"),
    [
        (WRITTEN, 0.02),
        ("Memcpy DtoH (Device -> Pinned)", 0.02),
        ("Memcpy DtoD (Device -> Device)", 0.05),
        ("Memset (Device)", 0.05),
    ],
)
def test_copies_of_a_small_share_are_part_of_the_work(name: str, worth: float, tmp_path: Path) -> None:
    """The copy is made longer until it costs the given share of a step, and a tenth less and more of it."""
    base = step_s(replace(ALONE, input_copy=Copy(10_000_000, 1)))
    hidden = next(ns for ns in range(1, NS, 1_000) if _gain_s(ns) > 0)
    for factor, is_reported in ((0.9, False), (1.1, True)):
        saved = base * factor * worth / (1 - factor * worth)
        ns = hidden + round(saved * 1e9)
        assert _gain_s(ns) / (base + _gain_s(ns)) == pytest.approx(factor * worth, rel=0.05)
        run = open_run(_run(tmp_path / str(factor), ns, name))
        found = [each.name for each in diagnose(run, jobs=1, use_cache=False).diagnoses]
        assert found == ["copies_in_step"] * is_reported


CORPUS = os.environ.get("CCL_BENCH_CORPUS")


@pytest.mark.skipif(not CORPUS, reason="CCL_BENCH_CORPUS is not set")
def test_the_copies_and_sets_of_a_healthy_recorded_run_are_left_alone() -> None:
    """They take 2.4 % of its steps, 4 to 6 us each; `make conclusions` reads another such run."""
    run = Path(str(CORPUS)) / "conclusions" / "healthy_nosync"
    found = diagnose(open_run(run), jobs=1)
    assert found.verdict is not None
    assert found.diagnoses == []
    assert 0.02 < found.verdict.parts["copies"] < 0.025
    assert "copies_in_step" in found.silent
