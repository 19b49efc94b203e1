"""Train all seven workloads to their end under a real Slurm, on processors, and print how the numbers agree.

    python tests/system/slurm/all_seven.py [NAME...]

Each is submitted as it is, twenty steps of a tiny flavour of its model, and its run is validated. The table
stands in docs/collecting-slurm.md: seconds of a recorded step in the traces and in torchtitan's log, as the
mean over ranks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import fmean

from slurm_cluster import cluster
from slurm_site import ROOT, Site, checkout

STEPS, PLAIN = 20, 10
WITHIN_S = 1200
HEAD = """\
| workload | ranks | step in the traces | step in the log | difference | overhead of recording |
|---|---|---|---|---|---|"""


def row(site: Site, name: str) -> str:
    """Run one workload, and return its line of the table."""
    job = site.submitted(name, short=())
    state = site.cluster.ended(job.number, within_s=WITHIN_S)
    if state != "COMPLETED":
        sys.exit(f"{name}: {state}\n{job.shown}")
    checked = site.ran("ccl-bench", "validate", str(job.run))
    if checked.returncode:
        sys.exit(f"{name}\n{checked.stdout}")
    found = site.measured(job.run, "iter_time_16")["iter_time_16"]
    per_rank = list(found["details"]["per_rank_s"].values())
    traced, logged, plain = (
        fmean(seconds) for seconds in (per_rank, job.logged_step_times(STEPS), job.logged_step_times(PLAIN))
    )
    return (
        f"| `{name.removesuffix('-perlmutter-16')}` | {len(per_rank)} | {traced:.3f} s | {logged:.3f} s "
        f"| {traced / logged - 1:+.1%} | {logged / plain - 1:+.0%} |"
    )


def main(names: list[str]) -> None:
    """Print the table, a line when each job has ended."""
    every = sorted(path.name for path in (ROOT / "trace_collection").iterdir() if path.is_dir())
    if unknown := sorted(set(names) - set(every)):
        sys.exit(f"{', '.join(unknown)}: no such workload; there are {', '.join(every)}")
    with tempfile.TemporaryDirectory(prefix="ccl-bench-seven-") as name:
        folder = Path(name)
        (folder / "scratch").mkdir()
        with cluster(folder / "slurm") as up:
            site = Site(up, checkout(folder / "checkout"), folder / "scratch")
            print(HEAD)
            for each in names or every:
                print(row(site, each), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
