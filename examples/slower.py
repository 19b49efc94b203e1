"""Write two runs into the current directory, of which the second has a slower backward pass.

    python examples/slower.py && ccl-bench compare before after

They are synthetic: four ranks, FSDP over 2 and tensor parallelism over 2, eight steps that differ by about
1 % from one another. The backward pass of `after` takes 15 % longer, which makes the step 5 % longer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ccl_bench.testing import Plan, write_run

BEFORE = Plan(dp_shard=2, tp=2, steps=8, jitter_ns=30_000)
AFTER = replace(BEFORE, seed=1, backward_ns=690_000)

if __name__ == "__main__":
    for name, plan in (("before", BEFORE), ("after", AFTER)):
        write_run(plan, Path(name))
