"""Search for the fastest configuration of torchtitan under a real Slurm, on processors, killed on the way.

    python tests/system/slurm/search_on_slurm.py [--budget N]

A definition of four ranks on two nodes is searched unattended: each trial is a folder of its own, submitted
with sbatch. When the third trial runs, the search is killed with SIGKILL and started again by the same
command. The history and the lines of both are printed; every trial must have been measured, and none
submitted twice.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[2]))

from slurm_cluster import cluster
from slurm_statements import user_of

from ccl_bench.predict.trials import read_trials

if TYPE_CHECKING:
    from slurm_site import Site

DEFINITION = """\
description = "Llama 3.1, a tiny flavour on processors."
model = "meta-llama/Llama-3.1-8B"

[machine]
device = "CPU"
devices_per_node = 2
cluster = "cpu"

[train_config.parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = 2

[train_config.training]
steps = 8
seq_len = 64
global_batch_size = 8
local_batch_size = 2

[train_config.activation_checkpoint]
mode = "none"
"""
COMMAND = (
    "sbatch --account=m1234 run.sbatch --training.seq_len 64 --training.steps 8 --profiling.profile_freq 8 "
    "--profiling.profiler_active 4 --profiling.profiler_warmup 2 "
    "--training.local_batch_size $((PP > 1 ? GLOBAL_BATCH / DP : MICRO_BATCH))"
)
WITHIN_S = 3600


def main(budget: int) -> None:
    """Search, kill, search on, and print."""
    with (
        tempfile.TemporaryDirectory(prefix="ccl-bench-search-") as folder,
        cluster(Path(folder) / "slurm") as up,
    ):
        site = user_of(up, Path(folder) / "user")
        definition = Path(folder) / "tiny.toml"
        definition.write_text(DEFINITION)
        search = Path(folder) / "search"
        program = [sys.executable, "-m", "ccl_bench", "search", str(definition), "--run", COMMAND]
        program += ["--budget", str(budget), "--output", str(search), "--vary", "tp,dp,pp,micro_batch"]
        killed = _started(program, site)
        deadline = time.monotonic() + WITHIN_S
        while _count(search) < 3 or not list(search.glob("03-*/output.log")):
            if killed.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the search ended before its third trial: {killed.communicate()}")
            time.sleep(0.5)
        time.sleep(5)
        killed.send_signal(signal.SIGKILL)
        print(f"{killed.communicate()[0]}killed", flush=True)
        output = _started(program, site).communicate(timeout=WITHIN_S)[0]
        print(output, flush=True)
        history = read_trials(search / "history.csv").rows
        print((search / "history.csv").read_text())
        jobs = [path.read_text().count("Submitted batch job") for path in search.glob("*/output.log")]
        if history["status"].to_list() != ["measured"] * budget or jobs != [1] * budget:
            logs = "".join(path.read_text(errors="replace")[-2000:] for path in search.glob("*/*.out"))
            sys.exit(f"statuses {history['status'].to_list()}, jobs {jobs}\n{logs}")


def _started(program: list[str], site: Site) -> subprocess.Popen[str]:
    environment = {
        **site.environment,
        "CCL_BENCH_ROOT": str(site.root),
        "RANKS_PER_NODE": "2",
        "SCHEDULER": "slurm",
    }
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)


def _count(search: Path) -> int:
    path = search / "history.csv"
    return read_trials(path).rows.height if path.exists() else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=6, metavar="N", help="trials")
    main(parser.parse_args().budget)
