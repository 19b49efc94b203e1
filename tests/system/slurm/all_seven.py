"""Train all seven workloads to their end under a real Slurm, on processors, and print how the numbers agree.

    python tests/system/slurm/all_seven.py [NAME...]

Each is submitted as it is, twenty steps of a tiny flavour of its model, and records Kineto, Execution Traces
and Nsight Systems. Its run is validated, and asked for all that the README about Perlmutter promises of runs
(tests/instructions/perlmutter.toml). The table is in docs/collecting-slurm.md: traces of each kind, and
seconds of a recorded step in the traces and in torchtitan's log, as the mean over ranks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[2]))

from slurm_cluster import cluster
from slurm_site import ROOT, Site
from slurm_statements import ON_PROCESSORS, broken_by_run, user_of

STEPS, PLAIN = 20, 10
WITHIN_S = 1200
COLUMNS = (
    "workload",
    "Kineto",
    "Execution Trace",
    "nsys",
    "step in the traces",
    "step in the log",
    "difference",
    "overhead of recording",
)


def row(site: Site, name: str) -> str:
    """Run one workload, and return its line of the table."""
    job = site.completed(lambda: site.submitted(name, short=(), **ON_PROCESSORS), within_s=WITHIN_S)
    if job.ended() != "COMPLETED":
        sys.exit(f"{name}: {job.ended()}\n{job.shown}")
    checked = site.ran("ccl-bench", "validate", str(job.run))
    if checked.returncode:
        sys.exit(f"{name}\n{checked.stdout}")
    if broken := broken_by_run(site, name):
        sys.exit("\n".join([f"{name} does not keep what the README promises:", *broken]))
    found = site.measured(job.run, "iter_time_16")["iter_time_16"]
    per_rank = list(found["details"]["per_rank_s"].values())
    traced, logged, plain = (
        fmean(seconds) for seconds in (per_rank, job.logged_step_times(STEPS), job.logged_step_times(PLAIN))
    )
    return (
        f"| `{name.removesuffix('-perlmutter-16')}` | {_left(job.run)} | {traced:.3f} s | {logged:.3f} s "
        f"| {traced / logged - 1:+.1%} | {logged / plain - 1:+.0%} |"
    )


def _left(run: Path) -> str:
    """Return how many traces of each kind the run holds."""
    kinds = ("kineto_trace_*.json", "torch_et_*.json", "*.nsys-rep")
    return " | ".join(str(len(list(run.glob(kind)))) for kind in kinds)


def main(names: list[str]) -> None:
    """Print the table, a line when each job has ended; between jobs others may have the machine's Slurm."""
    every = sorted(path.stem for path in (ROOT / "workloads").glob("*.toml"))
    if unknown := sorted(set(names) - set(every)):
        sys.exit(f"{', '.join(unknown)}: no such workload; there are {', '.join(every)}")
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    for name in names or every:
        with (
            tempfile.TemporaryDirectory(prefix="ccl-bench-seven-") as folder,
            cluster(Path(folder) / "slurm") as up,
        ):
            print(row(user_of(up, Path(folder) / "user"), name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
