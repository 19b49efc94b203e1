"""Write `trace_collection/` and the links `perlmutter/run_*.sbatch` from the definitions beside this file.

    python workloads/generate.py

A folder's own files that the definition does not make stay.
"""

import re
from pathlib import Path

from ccl_bench.collect.workloads import read_definition, write_folder

HERE = Path(__file__).resolve().parent


def job_name(workload: str) -> str:
    """Return a short name: `llama3_8b_tp` for `llama3.1-8b-torchtitan-tp-perlmutter-16`."""
    model, plan = workload.removesuffix("-perlmutter-16").split("-torchtitan-")
    return re.sub(r"[-+]", "_", f"{re.sub(r'[.][0-9]+', '', model)}_{plan}")


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.toml")):
        definition = read_definition(path)
        write_folder(definition, HERE.parent / "trace_collection" / definition.name, force=True)
        job = HERE.parent / "perlmutter" / f"run_{job_name(definition.name)}.sbatch"
        job.unlink(missing_ok=True)
        job.symlink_to(f"../trace_collection/{definition.name}/run.sbatch")
