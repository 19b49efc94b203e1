"""Recompute metrics of every run of the corpus with plain Python, and print whether the program agrees.

The program is asked as a user asks it, by its command; the plain side reads the files itself with json,
sqlite3 and lists. Nothing is shared between both.

    python tests/oracles/audit_numbers.py [--corpus FOLDER] [RUN ...]

Exit status 1 where a number differs, or where one side has a number and the other refuses it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import plain_kineto
import plain_memory
import plain_nsys
import plain_serving

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "runs"

TOLERANCE = 1e-9
"""Relative difference up to which two numbers agree: both sides round doubles in another order."""

LOOSE = {"sm": 1e-6}
"""The program counts shares of multiprocessors in whole millionths."""

Values = dict[str, float | None]
Command = Callable[[list[str]], subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Run:
    """One run of the corpus and the plain way to its numbers."""

    name: str
    path: Path
    recompute: Callable[[], Values]

    @cached_property
    def plain(self) -> Values:
        """Metric -> value by the plain side."""
        return self.recompute()


@dataclass(frozen=True)
class Row:
    """One metric of one run by both sides; None where a side has no number."""

    run: str
    metric: str
    program: float | None
    plain: float | None
    status: str

    @property
    def verdict(self) -> str:
        """Whether both agree."""
        if self.program is None or self.plain is None:
            return "agree" if self.program is self.plain else "differ"
        close = math.isclose(self.program, self.plain, rel_tol=LOOSE.get(self.metric, TOLERANCE))
        return "agree" if close else "differ"


def runs(corpus: Path) -> Iterator[Run]:
    """Yield every run whose numbers are recomputed."""
    for folder in sorted(
        [*(corpus / "kineto").iterdir(), *(corpus / "injected-pp").iterdir(), *EXAMPLES.iterdir()]
    ):
        files = sorted(folder.glob("*.json.gz"))
        yield Run(folder.name, folder, partial(plain_kineto.metrics_of, files))
    for folder in sorted((corpus / "nsys").iterdir()):
        exports = sorted(folder.glob("*.sqlite*"))
        if folder.name != "cuda-graphs":
            yield Run(f"nsys/{folder.name}", exports[0], partial(plain_nsys.metrics_of, exports))
    for folder in sorted((corpus / "serving").iterdir()):
        yield Run(f"serving/{folder.name}", folder, partial(plain_serving.metrics_of, folder))
    for path in sorted((corpus / "memory").glob("*.pickle")):
        yield Run("memory", path, partial(plain_memory.metrics_of, path))


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Return the outcome of an installed command."""
    program = Path(sys.executable).with_name(command[0])
    return subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)


def by_program(path: Path, names: list[str], run: Command = started) -> dict[str, tuple[float | None, str]]:
    """Return metric -> value and status as the command prints them."""
    asked = [part for name in names for part in ("--metric", name)]
    done = run(["ccl-metrics", "--trace", str(path), *asked, "--format", "json"])
    if not done.stdout:
        raise SystemExit(f"{path}: the program ended with {done.returncode}: {done.stderr}")
    results = json.loads(done.stdout)
    return {r["metric"]: (r["value"] if r["status"] == "ok" else None, r["status"]) for r in results}


def audited(run: Run, command: Command = started) -> list[Row]:
    """Return a row for each metric of a run that the plain side can tell."""
    program = by_program(run.path, list(run.plain), command)
    return [Row(run.name, name, value, run.plain[name], status) for name, (value, status) in program.items()]


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=os.environ.get("CCL_BENCH_CORPUS"))
    parser.add_argument("runs", nargs="*", help="names of runs; every one where none is given")
    chosen = parser.parse_args()
    if chosen.corpus is None:
        parser.error("name the corpus with --corpus or CCL_BENCH_CORPUS")
    counts: Counter[str] = Counter()
    print(f"{'RUN':<28}{'METRIC':<32}{'CCL-BENCH':>18}{'PLAIN':>18}  VERDICT")
    for run in runs(Path(chosen.corpus)):
        if chosen.runs and run.name not in chosen.runs:
            continue
        for row in audited(run):
            counts[row.verdict] += 1
            values = [row.status if v is None else f"{v:.9g}" for v in (row.program, row.plain)]
            print(f"{row.run:<28}{row.metric:<32}{values[0]:>18}{values[1]:>18}  {row.verdict}")
    print(f"{counts['agree']} numbers agree, {counts['differ']} differ")
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
