"""Damage real and generated runs in every way there is, and hold what commands say of them to their promises.

    python tests/hostile/campaigns/campaign.py --minutes 20 --seed 1 --report report.json

A case is a subject, a file of it, a kind of damage and a number; `--again SUBJECT/FILE/KIND/NUMBER` repeats
one and leaves the damaged run behind. Exit status 1 where a promise was not kept.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import judging
import watching
from kinds import KINDS, PACKED, Kind, damaged
from pickle_damage import MARK
from subjects import Subject, made

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_COMMANDS = ("inspect", "validate", "report", "timeline")
"""What a tenth of the cases is given to beside `ccl-metrics`."""


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged run."""

    subject: Subject
    file: str
    kind: Kind
    number: int

    @property
    def name(self) -> str:
        """What repeats the case."""
        packed = "packed " if self.kind in PACKED else ""
        return f"{self.subject.name}/{self.file}/{packed}{self.kind.name}/{self.number}"

    def written(self, place: Path) -> Path:
        """Write the damaged run and return its folder."""
        folder = place / self.subject.folder.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.subject.folder, folder)
        like = [name for name, kind in self.subject.files.items() if kind == self.subject.files[self.file]]
        chance = random.Random(self.name)
        content = (folder / self.file).read_bytes()
        other = (folder / chance.choice([name for name in like if name != self.file] or like)).read_bytes()
        (folder / self.file).write_bytes(damaged(self.kind, content, chance, other))
        return folder


@dataclass
class Campaign:
    """Cases answered so far, and what came of them."""

    place: Path
    memory: int = watching.MEMORY
    answers: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    broken: dict[str, list[str]] = field(default_factory=dict)
    slowest: float = 0.0
    largest: int = 0

    def __post_init__(self) -> None:
        self._watched = watching.Watched()
        self._before: dict[str, judging.Results] = {}

    def close(self) -> None:
        """End the process that answers."""
        self._watched.close()

    def tried(self, case: Case) -> list[judging.Breach]:
        """Return the promises that were not kept for a case."""
        if case.subject.name not in self._before:
            self._before[case.subject.name] = judging.results(self._metrics(case.subject.folder))
        folder = case.written(self.place)
        answer = self._metrics(folder)
        found = [*judging.breaches(answer, self.memory)]
        if not found:
            after = judging.results(answer)
            found = [*judging.dishonesty(case.kind.expected, self._before[case.subject.name], after)]
        if random.Random(case.name).random() < 0.1:
            found += judging.breaches(self._other(case, folder), self.memory)
        if any(Path(place, MARK.decode()).exists() for place in (".", folder)):
            found.append(judging.Breach("execution", "a program in a file ran"))
        self._count(case, answer, found)
        return found

    def _metrics(self, folder: Path) -> watching.Answer:
        words = ["--trace", str(folder), "--all", "--format", "json", "--no-cache", "--jobs", "1"]
        return self._watched.answer(["ccl-metrics", *words])

    def _other(self, case: Case, folder: Path) -> watching.Answer:
        command = random.Random(f"{case.name} too").choice(OTHER_COMMANDS)
        out = self.place / "written"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        more = {
            "report": ["--output", str(out / "report.html")],
            "timeline": ["--output", str(out / "timeline.json.gz")],
        }
        return self._watched.answer(["ccl-bench", command, str(folder), *more.get(command, [])])

    def _count(self, case: Case, answer: watching.Answer, found: list[judging.Breach]) -> None:
        kind = f"{case.subject.files[case.file]}: {'packed ' * (case.kind in PACKED)}{case.kind.name}"
        self.by_kind[kind].update(cases=1, broken=bool(found))
        self.answers[f"status {answer.status}" if not answer.end else answer.end] += 1
        self.slowest, self.largest = max(self.slowest, answer.seconds), max(self.largest, answer.peak)
        if found:
            self.broken[case.name] = [f"{breach.promise}: {breach.what}" for breach in found]

    def report(self, seconds: float) -> dict:
        """Return what came of all cases."""
        return {
            "cases": sum(count["cases"] for count in self.by_kind.values()),
            "seconds": round(seconds),
            "slowest_s": round(self.slowest, 1),
            "largest_mib": self.largest >> 20,
            "ends": dict(sorted(self.answers.items())),
            "kinds": {name: dict(count) for name, count in sorted(self.by_kind.items())},
            "broken": self.broken,
        }


def kinds_of(subject: Subject, file: str) -> list[Kind]:
    """Return what can be done to a file."""
    packed = (subject.folder / file).read_bytes()[:2] == b"\x1f\x8b"
    return [*KINDS[subject.files[file]], *(PACKED if packed else ())]


def cases(subjects: list[Subject], seed: int) -> Iterator[Case]:
    """Yield cases without end: every kind of every file once a round, in an order by chance."""
    every = [(s, file, kind) for s in subjects for file in s.files for kind in kinds_of(s, file)]
    chance = random.Random(seed)
    number = seed * 1_000_000
    while True:
        chance.shuffle(every)
        for subject, file, kind in every:
            number += 1
            yield Case(subject, file, kind, number)


def named(subjects: list[Subject], name: str) -> Case:
    """Return the case that a report calls so."""
    owner, rest = name.split("/", 1)
    file, kind, number = rest.rsplit("/", 2)
    subject = next(subject for subject in subjects if subject.name == owner)
    pool = PACKED if kind.startswith("packed ") else KINDS[subject.files[file]]
    found = next(known for known in pool if known.name == kind.removeprefix("packed "))
    return Case(subject, file, found, int(number))


def main() -> int:
    """Run a campaign as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="end after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="names of cases, as a regular expression")
    parser.add_argument("--report", type=Path, help="write what came of it here, as JSON")
    parser.add_argument("--again", metavar="CASE", help="repeat one case and keep its run")
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="ccl-bench-campaign-"))
    subjects = made(place / "subjects")
    campaign = Campaign(place / "damaged")
    began = time.monotonic()
    try:
        wanted = [named(subjects, chosen.again)] if chosen.again else cases(subjects, chosen.seed)
        for case in wanted:
            if time.monotonic() - began > 60 * chosen.minutes or campaign.answers.total() >= chosen.cases:
                break
            if re.search(chosen.only, case.name):
                for breach in campaign.tried(case):
                    print(f"{case.name}: {breach.promise}: {breach.what}", flush=True)
                if campaign.answers.total() % 100 == 0:
                    print(f"{campaign.answers.total()} cases", file=sys.stderr)
    finally:
        campaign.close()
        if chosen.again:
            print(f"the damaged run lies in {campaign.place}")
        else:
            shutil.rmtree(place)
        found = campaign.report(time.monotonic() - began)
        if chosen.report:
            chosen.report.parent.mkdir(parents=True, exist_ok=True)
            chosen.report.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{found['cases']} cases in {found['seconds']} s, {len(found['broken'])} of them broke a promise")
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
