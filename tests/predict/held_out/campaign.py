"""Predict pipelines from one recording, then record them, and print both.

campaign.py [--folder FOLDER] [--rounds N]: keeps the recordings there. Each round records the pipeline that
predictions start from anew, because the load of a machine changes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ccl_bench.analysis.steps.findings import warm_up
from ccl_bench.predict.prediction import Asked, predict_run
from ccl_bench.run import open_run
from ccl_bench.whatif import RunReplays, load_run_graph

HERE = Path(__file__).parent

STEPS = 16


class Case(NamedTuple):
    """A pipeline."""

    stages: int
    replicas: int
    microbatches: int
    schedule: str = "1f1b"

    def __str__(self) -> str:
        """Return the text of its row."""
        return f"pp {self.stages}, dp {self.replicas}, {self.microbatches} microbatches, {self.schedule}"


START = Case(4, 2, 8)
CASES = (
    Case(4, 2, 4),
    Case(4, 2, 16),
    Case(2, 4, 8),
    Case(8, 1, 8),
    Case(4, 2, 8, "gpipe"),
)

MOST_ERROR = 0.10


def main() -> int:
    """Predict, record and print; 1 if the median error of a pipeline over the rounds is above 10 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the recordings are, or are kept")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    errors: dict[Case, list[float]] = {case: [] for case in CASES}
    print("| round | pipeline | predicted p50 | p10 to p90 | measured median | error |")
    print("|---|---|---|---|---|---|")
    for number in range(1, options.rounds + 1):
        start = _record(folder / f"{number}-start", START)
        for case in CASES:
            asked = Asked(
                case.replicas, case.stages, case.microbatches, case.schedule, allow_other_batch=True
            )
            answer = predict_run(open_run(start), asked)
            held_out = load_run_graph(open_run(_record(folder / f"{number}-{case}", case)))
            lengths = RunReplays(held_out).recorded_s
            step, measured = answer.step_s, float(np.median(lengths[warm_up(lengths.tolist()) :]))
            assert step is not None, answer.refused
            error = step["p50"] / measured - 1
            errors[case].append(error)
            low, middle, high = (f"{1000 * step[name]:.1f} ms" for name in ("p10", "p50", "p90"))
            took = f"{1000 * measured:.1f} ms"
            print(
                f"| {number} | {case} | {middle} | {low} to {high} | {took} | {100 * error:+.1f} % |",
                flush=True,
            )
    return int(any(abs(np.median(of_case)) > MOST_ERROR for of_case in errors.values()))


def _record(folder: Path, case: Case) -> Path:
    if not list(folder.glob("*.json")):
        folder.mkdir(parents=True, exist_ok=True)
        words = [folder, case.stages, case.replicas, case.microbatches, case.schedule, STEPS]
        command = [sys.executable, HERE / "program.py", *map(str, words)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        (folder / "store").unlink(missing_ok=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
