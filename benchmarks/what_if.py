"""Measure forty scenarios of `ccl-bench what-if` and every metric of `ccl-metrics`, on the same runs.

what_if.py [--folder FOLDER]: prints processor time, the ratio of both, and the largest memory of a process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ccl_bench.testing import Plan, Straggler, write_run

TARGET, MOST_BYTES = 3.0, 1.5e9
"""What the ratio and the memory may come to."""

RUNS = (("8 ranks of 60 MB", 8, 52), ("64 ranks of 10 MB", 64, 8))
"""Name, ranks, and microbatches, which make the size of a trace."""

_PLAN = Plan(steps=3, layers=24, stragglers=(Straggler(2, layer_ns=40_000),), jitter_ns=20_000)


def main() -> int:
    """Make the runs, measure both commands, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the runs are, or are kept")
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp())
    print("| run | every metric | forty scenarios | ratio | memory |\n|---|---|---|---|---|")
    missed = False
    for name, ranks, microbatches in RUNS:
        run = folder / f"{ranks}-ranks"
        if not run.exists():
            write_run(replace(_PLAN, dp_shard=ranks, microbatches=microbatches), run)
        every, _ = _measured("ccl-metrics", "--trace", str(run), "--all", "--no-cache")
        forty, memory = _measured("ccl-bench", "what-if", str(run), "--no-cache", *_scenarios())
        print(f"| {name} | {every:.1f} s | {forty:.1f} s | {forty / every:.1f} | {memory / 1e9:.2f} GB |")
        missed |= forty > TARGET * every or memory > MOST_BYTES
    return int(missed)


def _scenarios() -> list[str]:
    """Return forty scenarios: ranks left out, kernels and communication scaled, ideal times."""
    options = [option for rank in range(8) for option in ("--without", f"rank:{rank}")]
    for factor in range(1, 11):
        for what in ("kernel:gemm", "comm:all_gather", "comm:reduce_scatter"):
            options += ["--scale", f"{what}={factor / 10}"]
    return [*options, "--ideal", "comm", "--ideal", "compute"]


def _measured(*command: str) -> tuple[float, float]:
    """Return the processor time of a command with its children, s, and the largest memory of one, bytes."""
    probe = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)\n"
        "sys.exit(done.returncode)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", probe, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    seconds, memory = map(float, process.stdout.split())
    return seconds, memory


if __name__ == "__main__":
    sys.exit(main())
