"""Record runs with injected causes, predict their steps without them, and print both beside a healthy step.

campaign.py [--folder FOLDER]: keeps the recordings there. No machine is quiet: 25th percentiles are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent


class Case(NamedTuple):
    """One injected cause."""

    program: str
    scenario: str
    without: str
    ranks: frozenset[int]
    """Those that may be named."""


CASES = (
    Case("pipeline", "slow", "rank:1", frozenset({1})),
    Case("pipeline", "last", "stage:3", frozenset({3, 7})),
    Case("replicas", "slow", "rank:1", frozenset({1})),
    Case("replicas", "loader", "rank:2", frozenset({2})),
    Case("replicas", "experts", "rank:3", frozenset({3})),
)


def main() -> int:
    """Record, predict and print; 1 where a prediction is off by over 5 %, or too few culprits are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the recordings are, or are kept")
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp())
    for program in dict.fromkeys(case.program for case in CASES):
        _record(folder / program, program)
    print("| program | injected | healthy step | with it | without it, predicted | error | culprit named |")
    print("|---|---|---|---|---|---|---|")
    rows = [_row(folder, case) for case in CASES]
    return int(any(abs(error) > 0.05 or named < 0.9 for error, named in rows))


def _record(folder: Path, program: str) -> None:
    if not list(folder.glob("*.json")):
        folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, HERE / "program.py", folder, program], check=True, env=environment)
        (folder / "store").unlink(missing_ok=True)


def _row(folder: Path, case: Case) -> tuple[float, float]:
    healthy = _quartile(_answer(folder / case.program, "clean")["step_s"])
    found = _answer(folder / case.program, case.scenario, "--without", case.without)
    slow, predicted = _quartile(found["step_s"]), _quartile(found["scenarios"][0]["step_s"])
    error = predicted / healthy - 1
    named = _named(folder / case.program, case)
    print(
        f"| {case.program} | {case.scenario} | {1000 * healthy:.1f} ms | {1000 * slow:.1f} ms | "
        f"{1000 * predicted:.1f} ms | {100 * error:+.1f} % | {100 * named:.0f} % |"
    )
    return error, named


def _quartile(steps: list[float]) -> float:
    return float(np.percentile(steps, 25))


def _answer(run: Path, scenario: str, *options: str) -> Any:
    marker = ("--marker", f"scenario {scenario}$")
    command = ["ccl-bench", "what-if", run, *marker, *options, "--format", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def _named(run: Path, case: Case) -> float:
    """Return the share of steps in which the slowest rank is one of those where the cause was injected."""
    from ccl_bench.result.step_choice import step_choice
    from ccl_bench.run import open_run
    from ccl_bench.whatif import RunReplays, load_run_graph

    opened = open_run(run, choice=step_choice(marker=f"scenario {case.scenario}$"))
    replays = RunReplays(load_run_graph(opened))
    ranks = sorted(int(name) for name in replays.names("rank").unique_names if name)
    alone = np.stack(replays.steps_s(replays.ideal_but(replays.matches("rank", str(rank))) for rank in ranks))
    slowest = [ranks[at] for at in alone.argmax(axis=0)]
    return sum(rank in case.ranks for rank in slowest) / len(slowest)


if __name__ == "__main__":
    sys.exit(main())
