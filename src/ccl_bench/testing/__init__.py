"""Generated runs with known answers, for tests, benchmarks, and authors of metrics.

A `Plan` says how many ranks there are in each dimension of parallelism, how long everything takes
and what goes wrong. It is played out on one true clock in whole nanoseconds, written as the files
that PyTorch's profiler would leave, and `Expected` holds what every number must come to, worked
out from the plan and from no file.

    from ccl_bench.testing import Plan, Straggler, Style, values, write_run

    plan = Plan(dp_shard=4, tp=2, stragglers=(Straggler(rank=5, layer_ns=80_000),))
    expected = write_run(plan, directory, style=Style(compresses=True))

    expected.parts(rank=0, step=1).exposed_communication_ns
    expected.call_counts(rank=0, step=1)["all_gather"]
    values(expected)["comm_comp_overlap"]  # in the unit of the metric

All times are ns, all sizes bytes, unless a name says otherwise. Ranks are laid out as torchtitan
does: (pp, dp_replicate, dp_shard, cp, tp), the last running fastest. Steps are the numbers
of their `ProfilerStep`.

What the model leaves out: parameters of experts are not sharded, interleaved schedules,
batched sends, links that are shared. A pipeline gathers sharded parameters once a step and keeps them.
"""

from ccl_bench.testing import damage, plans
from ccl_bench.testing.collectives import Member, Operation, bus_factor
from ccl_bench.testing.expected import (
    Expected,
    RankCall,
    StepParts,
    lag_ns,
    message_bytes,
    values,
    waits_in_groups,
)
from ccl_bench.testing.kineto_file import write_rank
from ccl_bench.testing.kineto_templates import TORCH_NAME, Style
from ccl_bench.testing.mesh import Group, Mesh
from ccl_bench.testing.plan import Copy, Device, Experts, Host, Message, Plan, SlowLink, Straggler
from ccl_bench.testing.program import even_bubble_fraction, one_forward_one_backward
from ccl_bench.testing.run_directory import (
    moe_assignments,
    run_metadata,
    trace_path,
    workload_card,
    write_run,
    written_ranks,
)
from ccl_bench.testing.simulation import RankStep, Timeline, timeline

__all__ = [
    "TORCH_NAME",
    "Copy",
    "Device",
    "Expected",
    "Experts",
    "Group",
    "Host",
    "Member",
    "Mesh",
    "Message",
    "Operation",
    "Plan",
    "RankCall",
    "RankStep",
    "SlowLink",
    "StepParts",
    "Straggler",
    "Style",
    "Timeline",
    "bus_factor",
    "damage",
    "even_bubble_fraction",
    "lag_ns",
    "message_bytes",
    "moe_assignments",
    "one_forward_one_backward",
    "plans",
    "run_metadata",
    "timeline",
    "trace_path",
    "values",
    "waits_in_groups",
    "workload_card",
    "write_rank",
    "write_run",
    "written_ranks",
]
