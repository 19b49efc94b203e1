"""The training of `make demo-collect` with fewer steps; its ranks are forked."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.

sys.path.append(str(Path(__file__).parents[3] / "examples" / "record"))

import run  # noqa: E402
import train_fsdp_tp  # noqa: E402

from ccl_bench.collect import Schedule  # noqa: E402

run.Plan.steps = property(lambda _: Schedule(skip=1, timed=1, warmup=1, active=1, observed=1))

if __name__ == "__main__":
    train_fsdp_tp.main()
