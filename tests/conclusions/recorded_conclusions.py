"""Recorded runs with known causes, of the corpus: what must be concluded of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from judge import CLOSE, LENGTH

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.result.diagnosis import Diagnosed

CORPUS = os.environ.get("CCL_BENCH_CORPUS")
FOLDER = Path(CORPUS or "none") / "conclusions"


@dataclass(frozen=True)
class Recorded:
    """What is known of a recorded run."""

    rules: tuple[str, ...] = ()
    """Diagnoses of which one must come first; none must be given if empty."""
    gain_ms: tuple[float, float] | None = None
    """Least and largest gain."""
    ranks: tuple[int, ...] | None = None
    step_ms: float | None = None


def _near(ms: float) -> tuple[float, float]:
    return ms * (1 - CLOSE), ms * (1 + CLOSE)


RECORDED = {
    "late_host": Recorded(("late_ranks",), _near(11.95), (1,), 39.75),
    "gc_even": Recorded(("host_pauses",), _near(7.35), None, 35.16),
    "healthy_nosync": Recorded(step_ms=27.0),
    "healthy_backlog": Recorded(step_ms=27.0),
    "resnet-loader": Recorded(("data_loading",), (163.0, 177.0)),
    "old-loader": Recorded(("data_loading",), _near(48.0)),
    "gloo-late-rank": Recorded(("late_ranks",), (60.0, 70.0), (1,)),
    "gloo-gc": Recorded(("host_pauses", "garbage_collection")),
}
"""Run → what is known: re-simulated from recordings (see `truth.json`), or recorded with the cause.

The loader of `resnet-loader` takes 216 of 333 ms; the device is idle for 163 ms of it, and busy for 156 ms of
the step, which no loader can undercut.
"""


def wrong(known: Recorded, found: Diagnosed) -> list[str]:
    """Return what is wrong in the answer for a recorded run."""
    problems = []
    first = found.diagnoses[0] if found.diagnoses else None
    if (first.name if first else None) not in (known.rules or (None,)):
        problems.append("name")
    elif first is not None:
        if known.ranks is not None and first.ranks != [*known.ranks]:
            problems.append("ranks")
        if known.gain_ms is not None:
            least, most = known.gain_ms
            if first.gain_s is None or not least <= 1e3 * first.gain_s <= most:
                problems.append("gain")
    if known.step_ms is not None:
        length_ms = 1e3 * found.verdict.step_s if found.verdict else 0.0
        if abs(length_ms - known.step_ms) > LENGTH * known.step_ms:
            problems.append("step")
    return problems


def recorded_rows() -> Iterator[str]:
    """Yield the table of recorded runs, as Markdown; nothing without the corpus."""
    if not FOLDER.is_dir():
        return
    yield from ("", "| recorded run | known | answer | wrong |", "|---|---|---|---|")
    for name, known in RECORDED.items():
        found = diagnose(open_run(FOLDER / name), jobs=1, use_cache=False)
        words = " or ".join(f"`{rule}`" for rule in known.rules) or "nothing"
        if known.gain_ms is not None:
            words += f", {known.gain_ms[0]:.1f} to {known.gain_ms[1]:.1f} ms"
        if known.step_ms is not None:
            words += f", step {known.step_ms:.2f} ms"
        said = [
            f"`{each.name}`" + ("" if each.gain_s is None else f" {1e3 * each.gain_s:.1f} ms")
            for each in found.diagnoses
        ]
        length = f", step {1e3 * found.verdict.step_s:.2f} ms" if found.verdict else ""
        answer, problems = ", ".join(said) or "nothing", ", ".join(wrong(known, found))
        yield f"| {name} | {words} | {answer}{length} | {problems} |"
