"""Generated runs in which a cause is injected, and what each costs: counted from the plan, not the traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.run import open_run
from ccl_bench.testing import Host, Plan, timeline, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result.diagnosis import Diagnosed, Opportunity

TOGETHER = Host(steps_start_together=True)
"""A host whose steps start on all ranks at once, so that a late rank is late in each step anew."""


def healthy(**other: object) -> Plan:
    """Return four ranks that shard their weights, all alike."""
    return Plan(**({"dp_shard": 4, "steps": 3, "host": TOGETHER} | other))  # type: ignore[arg-type]


def pipeline(**other: object) -> Plan:
    """Return four stages of two ranks each, all alike."""
    return Plan(**({"pp": 4, "dp_shard": 2, "steps": 2, "layers": 1, "microbatches": 8} | other))  # type: ignore[arg-type]


def step_s(plan: Plan) -> float:
    """Return the length of the mean step of a plan: of its slowest rank, from start to end of its host."""
    steps = timeline(plan).steps
    lengths = [max(each.host_end_ns - each.host_start_ns for each in step) for step in steps]
    return sum(lengths) / len(lengths) / 1e9


def diagnosed(plan: Plan, folder: Path) -> Diagnosed:
    """Return the diagnoses of the run that a plan makes."""
    write_run(plan, folder)
    return diagnose(open_run(folder), jobs=1, use_cache=False)


def only(found: Diagnosed) -> Opportunity:
    """Return the one opportunity that was found."""
    assert [each.name for each in found.diagnoses] == [each.name for each in found.diagnoses[:1]]
    return found.diagnoses[0]
