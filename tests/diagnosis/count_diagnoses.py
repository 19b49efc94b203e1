"""Count which injected causes are named, and what is said of healthy runs: `make diagnoses`.

Each cause is injected into generated runs without noise and with three kinds of it, and was into a recorded
one where the corpus has it. The table goes into docs/diagnoses.md.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from injected import CASES, HEALTHY, diagnosed, diagnosed_case

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from injected import Case

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "diagnoses.md"
NOISE = ((0, 0), (10_000, 1), (20_000, 2), (30_000, 3))
"""Most noise of a kernel, ns, and its seed."""

STEPS = 6
_TABLE = re.compile(r"(?<=<!-- counted -->\n).*?(?=<!-- end -->)", re.DOTALL)


def noisy_cases() -> Iterator[tuple[str, Case]]:
    """Yield each injected cause, with each noise."""
    for name, case in CASES.items():
        for jitter, seed in NOISE:
            steps = max(case.plan.steps, STEPS)
            yield name, replace(case, plan=replace(case.plan, jitter_ns=jitter, seed=seed, steps=steps))


def count() -> tuple[list[tuple[str, str, int, int]], Counter[str], int]:
    """Return each cause with its diagnosis, how often it was named, and runs; alarms; healthy runs."""
    runs: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for name, case in noisy_cases():
        with tempfile.TemporaryDirectory() as folder:
            named = diagnosed_case(case, Path(folder)).diagnoses
        runs[name] += 1
        right = [each for each in named if each.name == case.diagnosis and each.ranks == [*case.ranks]]
        found[name] += bool(right)
        print(f"{name}: {[each.name for each in named]}", flush=True)
    alarms: Counter[str] = Counter()
    for name, plan in HEALTHY.items():
        for jitter, seed in NOISE:
            with tempfile.TemporaryDirectory() as folder:
                said = diagnosed(replace(plan, jitter_ns=jitter, seed=seed, steps=STEPS), Path(folder))
            alarms.update(each.name for each in said.diagnoses)
            print(f"healthy {name}: {[each.name for each in said.diagnoses]}", flush=True)
    rows = [(name, case.diagnosis, found[name], runs[name]) for name, case in CASES.items()]
    return [*rows, *_recorded()], alarms, len(HEALTHY) * len(NOISE)


def _recorded() -> Iterator[tuple[str, str, int, int]]:
    """Yield the steps of a recorded pipeline with a cause, and in how many of them it is named."""
    corpus = os.environ.get("CCL_BENCH_CORPUS")
    if not corpus:
        return
    named = diagnose(open_run(Path(corpus) / "injected-pp" / "train-pp4-dp2"), jobs=1).diagnoses
    expected = {
        "late_ranks": ({2, 3}, [1], "slow rank"),
        "uneven_stages": ({4, 5}, [3, 7], "slow last stage"),
    }
    for diagnosis, (places, ranks, what) in expected.items():
        steps = {step for step in range(24) if step % 6 in places}
        own = [each for each in named if each.name == diagnosis and each.ranks == ranks]
        seen = {step for each in own for step in each.steps}
        yield f"{what}, recorded with gloo (steps)", diagnosis, len(steps & seen), len(steps)


def _said() -> Iterator[tuple[str, str]]:
    """Yield what is said of recorded runs into which nothing was injected."""
    corpus = Path(os.environ.get("CCL_BENCH_CORPUS", "none"))
    places = (ROOT / "examples" / "runs", corpus / "kineto", corpus / "nsys")
    for run in sorted(run for place in places if place.is_dir() for run in place.iterdir() if run.is_dir()):
        said = diagnose(open_run(run), jobs=1)
        named = [
            f"`{each.name}`" + (f" {100 * each.share:.0f} %" if each.share is not None else "")
            for each in said.diagnoses
        ]
        yield run.name, ", ".join(named) or said.why_no_gains or "nothing"


def main() -> None:
    """Count, print the table and write it into the manual."""
    rows, alarms, healthy = count()
    lines = ["| injected | diagnosis | named | of |", "|---|---|--:|--:|"]
    lines += [f"| {name} | `{diagnosis}` | {right} | {of} |" for name, diagnosis, right, of in rows]
    said = ", ".join(f"{name} {times}" for name, times in sorted(alarms.items())) or "none"
    lines += ["", f"False alarms in {healthy} healthy runs: {said}.", ""]
    lines += ["Recorded runs into which nothing was injected:", "", "| run | diagnoses |", "|---|---|"]
    lines += [f"| {run} | {said} |" for run, said in _said()]
    table = "\n".join([*lines, ""])
    print(table)
    PAGE.write_text(_TABLE.sub(lambda _: table, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
