"""Check conclusions on simulated runs, and write how many are right into the manual: `make conclusions`.

count_conclusions.py [--seed N] [--runs N] [--only CAUSE[:NUMBER]] [--keep FOLDER] prints wrong answers and a
table. `--only late_host:7 --keep FOLDER` makes that run again and keeps its traces. The manual changes only
if all causes are counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # a process for each core, and tables are small

from drawn_runs import CAUSES, draw, draw_healthy
from judge import concluded
from recorded_conclusions import recorded_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from judge import Judgement

PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnoses.md"
HEALTHY = "healthy"
HEALTHY_FOR_EACH = 6
"""Healthy runs for each run of a cause: a false alarm in fifty must show."""

_TABLE = re.compile(r"(?<=<!-- concluded -->\n).*?(?=<!-- end of concluded -->)", re.DOTALL)


def conclude(name: str, seed: int, number: int, keep: Path | None) -> Judgement:
    """Draw a run, diagnose it and judge the answer."""
    case = draw_healthy(seed, number) if name == HEALTHY else draw(name, seed, number)
    return concluded(case, keep)


def _conclude(job: tuple[str, int, int, Path | None]) -> Judgement:
    return conclude(*job)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all runs, print the wrong answers and the table; 1 if any answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=10, help="runs of each cause")
    parser.add_argument("--only", help="a cause, or one run of it, such as late_host:7")
    parser.add_argument("--keep", type=Path, help="folder in which the runs are kept")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    chosen = parser.parse_args(arguments)
    jobs = list(_jobs(chosen.only, chosen.seed, chosen.runs, chosen.keep))
    judgements: list[Judgement] = []
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        for each in pool.imap_unordered(_conclude, jobs):
            judgements.append(each)
            if not each.is_right:
                print(
                    f"{each.case} [{each.regime}]\n  truth:  {each.truth}\n  answer: {each.answer}",
                    flush=True,
                )
    table = "\n".join([*_rows(judgements), *([] if chosen.only else recorded_rows()), ""])
    print(table)
    if not chosen.only:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_TABLE.sub(lambda _: table, text), encoding="utf-8")
    return int(not all(each.is_right for each in judgements))


def _jobs(
    only: str | None, seed: int, runs: int, keep: Path | None
) -> Iterable[tuple[str, int, int, Path | None]]:
    name, _, number = (only or "").partition(":")
    for each in (*CAUSES, HEALTHY):
        if name and each != name:
            continue
        count = runs * (HEALTHY_FOR_EACH if each == HEALTHY else 1)
        numbers = [int(number)] if number else range(count)
        yield from ((each, seed, place, keep) for place in numbers)


def _rows(judgements: Sequence[Judgement]) -> list[str]:
    """Return the table of causes and that of healthy runs, as Markdown."""
    lines = ["| cause | runs | named right | gain right | median error of the gain | step right |"]
    lines += ["|---|--:|--:|--:|--:|--:|"]
    of_cause: dict[str, list[Judgement]] = {}
    for each in judgements:
        of_cause.setdefault(each.case.partition(":")[0], []).append(each)
    wanted = [name for name in CAUSES if name in of_cause]
    for name in wanted:
        lines.append(_row(name.replace("_", " "), of_cause[name]))
    clear = [each for name in wanted if not CAUSES[name].is_hidden for each in of_cause[name]]
    if clear:
        lines.append(_row("all that cost time", clear))
    healthy = of_cause.get(HEALTHY, [])
    if healthy:
        alarms = Counter(name for each in healthy for name in each.alarms)
        named = ", ".join(f"`{name}` {count}" for name, count in sorted(alarms.items())) or "none"
        wrong = sum(bool(each.alarms) for each in healthy)
        refused = sum(not each.is_named and not each.alarms for each in healthy)
        right = sum(each.is_length_right for each in healthy)
        lines += ["", "| healthy runs | with false alarms | diagnoses | not replayed | step right |"]
        lines += ["|--:|--:|---|--:|--:|"]
        lines += [
            f"| {len(healthy)} | {wrong} ({wrong / len(healthy):.1%}) | {named} | {refused} | {right} |"
        ]
    return lines


def _row(name: str, judgements: Sequence[Judgement]) -> str:
    errors = [abs(each.error) for each in judgements if each.error is not None]
    cells = [
        name,
        str(len(judgements)),
        str(sum(each.is_named for each in judgements)),
        str(sum(each.is_gain_right for each in judgements)),
        f"{100 * median(errors):.1f} %" if errors else "",
        str(sum(each.is_length_right for each in judgements)),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
