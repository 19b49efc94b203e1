"""Damage what six real runs mean, and count the numbers that change without a finding: `make damage`.

    python tests/hostile/campaigns/damage.py --seeds 1,2 --run resnet --only "a copy" --report report.json

A case is a run, a kind and a seed. Each silent one is printed with the command that repeats it and keeps the
damaged run. Exit status 1 where a number changed silently although the damage can be detected. A campaign of
all kinds and runs updates the manual.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # a process for each core, and tables are small

import judging
import meaning_database
import meaning_lost
import meaning_swapped
import meaning_times
from meaning_judging import (
    BY_INSPECT,
    REPORTED,
    SILENT,
    VERDICTS,
    WITHOUT_EFFECT,
    Verdict,
    judged,
    metrics,
)
from meaning_runs import RUNS, InapplicableError, Traces, origin
from watching import Watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meaning_kinds import Kind

PAGE = Path(__file__).resolve().parents[3] / "docs" / "robustness.md"
UNSEEN = Path(__file__).with_name("meaning_unseen.toml")
UNDETECTABLE = "undetectable"
"""Column of what is silent, and stated in `meaning_unseen.toml`."""

_TABLE = re.compile(r"(?<=<!-- damage -->\n).*?(?=<!-- end of damage -->)", re.DOTALL)

_KINETO = [*meaning_lost.KINDS, *meaning_swapped.KINDS, *meaning_times.KINDS]
KINDS: dict[str, list[Kind]] = {run: meaning_database.KINDS if run == "nsys" else _KINETO for run in RUNS}


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged run."""

    run: str
    family: str
    kind: str
    seed: int

    @property
    def name(self) -> str:
        """The kind as the manual and `--only` write it."""
        return f"{self.family}: {self.kind}"

    def written(self, place: Path) -> Path | None:
        """Write the damaged run and return its folder; None where the run holds nothing to damage."""
        run = Traces(origin(self.run), place / self.run)
        kind = self.described()
        try:
            kind.apply(run, random.Random(f"{self.run}/{self.name}/{self.seed}"))
        except InapplicableError:
            return None
        run.write()
        return run.folder

    def described(self) -> Kind:
        """Return the kind of the case."""
        return next(k for k in KINDS[self.run] if (k.family, k.name) == (self.family, self.kind))


@cache
def _watched() -> Watched:
    return Watched()


@cache
def _before(run: str) -> judging.Results:
    return judging.results(metrics(origin(run), _watched()))


def tried(job: tuple[Case, Path | None]) -> tuple[Case, Verdict | None]:
    """Return the verdict on a case; None where the run holds nothing to damage."""
    case, keep = job
    place = keep / re.sub(r"\W+", "-", f"{case.name}-{case.seed}") if keep else Path(tempfile.mkdtemp())
    try:
        folder = case.written(place)
        if folder is None:
            return case, None
        neutral = case.described().is_neutral
        return case, judged(folder, origin(case.run), _before(case.run), _watched(), is_neutral=neutral)
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


@cache
def stated() -> list[dict[str, Any]]:
    """Return what no reader can detect: kinds, runs (all by default) and the reason."""
    return tomllib.loads(UNSEEN.read_text(encoding="utf-8"))["unseen"]


def is_unseen(case: Case) -> bool:
    """Return whether no reader can detect the damage of a case."""
    return any(case.name in entry["kinds"] and case.run in entry.get("runs", RUNS) for entry in stated())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign as the command line says."""
    chosen = _chosen(arguments)
    jobs = [(case, chosen.keep) for case in _cases(chosen.run, chosen.only, chosen.seeds)]
    began = time.monotonic()
    answers: dict[Case, Verdict] = {}
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        for case, verdict in pool.imap_unordered(tried, jobs):
            if verdict:
                answers[case] = verdict
                _print(case, verdict)
            if len(answers) % 50 == 0:
                print(f"{len(answers)} inputs in {time.monotonic() - began:.0f} s", file=sys.stderr)
    if chosen.report:
        chosen.report.parent.mkdir(parents=True, exist_ok=True)
        chosen.report.write_text(json.dumps([*map(_described, answers, answers.values())], indent=2) + "\n")
    tables = "\n".join([*_counted(answers), "", *_reasons(answers), ""])
    print(tables)
    if not chosen.only and not chosen.run:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_TABLE.sub(lambda _: tables, text), encoding="utf-8")
    return int(any(_is_bad(case, verdict) for case, verdict in answers.items()))


def _chosen(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1", help="numbers, separated by commas")
    parser.add_argument("--only", default="", help="the name of a kind, or a part of names")
    parser.add_argument("--run", default="", choices=["", *RUNS])
    parser.add_argument("--report", type=Path, help="write what came of it here, as JSON")
    parser.add_argument("--keep", type=Path, help="folder in which the damaged runs are kept")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    return parser.parse_args(arguments)


def _cases(run: str, only: str, seeds: str) -> list[Case]:
    """Return the cases in an order in which each process keeps to few runs."""
    kinds = [(name, kind) for name in RUNS if run in ("", name) for kind in KINDS[name]]
    every = [
        Case(name, kind.family, kind.name, int(seed)) for seed in seeds.split(",") for name, kind in kinds
    ]
    return [case for case in every if case.name == only] or [case for case in every if only in case.name]


def _is_bad(case: Case, verdict: Verdict) -> bool:
    return verdict.name not in (REPORTED, WITHOUT_EFFECT) and not (_is_silent(verdict) and is_unseen(case))


def _is_silent(verdict: Verdict) -> bool:
    return verdict.name in (SILENT, BY_INSPECT)


def _print(case: Case, verdict: Verdict) -> None:
    if _is_bad(case, verdict):
        again = f'{sys.argv[0]} --run {case.run} --only "{case.name}" --seeds {case.seed} --keep build/damage'
        found = [
            f"{case.run}: {case.name}, seed {case.seed}: {verdict.name} {' '.join(verdict.codes)}".rstrip()
        ]
        print("\n  ".join([*found, *verdict.numbers, again]), flush=True)


def _described(case: Case, verdict: Verdict) -> dict[str, Any]:
    described = asdict(verdict) | {"verdict": verdict.name, "is_unseen": is_unseen(case)}
    return asdict(case) | {key: value for key, value in described.items() if key != "name"}


def _counted(answers: dict[Case, Verdict]) -> list[str]:
    """Return the table of verdicts by family of damage, as Markdown."""
    columns = (*VERDICTS, UNDETECTABLE)
    lines = [f"| damage | kinds | inputs | {' | '.join(columns)} |", f"|---|{'--:|' * (2 + len(columns))}"]
    for family in (*dict.fromkeys(case.family for case in answers), "all"):
        own = {case: verdict for case, verdict in answers.items() if family in (case.family, "all")}
        counts = Counter(
            UNDETECTABLE if _is_silent(verdict) and is_unseen(case) else verdict.name
            for case, verdict in own.items()
        )
        kinds = len({case.name for case in own})
        lines.append(f"| {' | '.join(map(str, (family, kinds, len(own), *(counts[c] for c in columns))))} |")
    return lines


def _reasons(answers: dict[Case, Verdict]) -> list[str]:
    """Return the table of what no reader can detect, with the reasons, as Markdown."""
    lines = ["| not detectable | in | reason |", "|---|---|---|"]
    found = {(case.name, case.run) for case, verdict in answers.items() if _is_silent(verdict)}
    for entry in stated():
        runs = entry.get("runs", [*RUNS])
        kinds = [kind for kind in entry["kinds"] if any((kind, run) in found for run in runs)]
        if kinds:
            where = ", ".join(f"`{run}`" for run in entry["runs"]) if "runs" in entry else "all runs"
            lines.append(f"| {'; '.join(kinds)} | {where} | {entry['reason']} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
