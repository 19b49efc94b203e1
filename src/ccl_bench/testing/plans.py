"""Plans that are worth having ready: each shows one thing, with round numbers."""

from __future__ import annotations

from ccl_bench.testing.plan import Copy, Experts, Host, Message, Plan, Straggler

IDEAL_HOST = Host(launch_ns=0, latency_ns=0, gap_ns=0, between_steps_ns=0, steps_start_together=True)
"""A host that costs nothing and starts every step on all ranks at once."""


def two_ranks() -> Plan:
    """Return two ranks that shard one layer of 1 ms, gathered before and reduced after it, nothing hidden."""
    return Plan(
        dp_shard=2,
        steps=2,
        layers=1,
        forward_ns=400_000,
        backward_ns=600_000,
        optimizer_ns=50_000,
        prefetch=False,
        all_gather=Message(2_000_000, 100_000),
        reduce_scatter=Message(2_000_000, 200_000, "Float"),
        input_copy=Copy(0, 0),
        host=IDEAL_HOST,
    )


def late_rank(late_ns: int = 50_000) -> Plan:
    """Return eight ranks of which rank 3 comes `late_ns` late to the all-gather of each layer, ns.

    16 MiB gathered in 100 us: 167.77 GB/s algorithm and 146.80 GB/s bus bandwidth.
    """
    return Plan(
        dp_shard=8,
        layers=4,
        prefetch=False,
        all_gather=Message(8_388_608, 100_000),
        stragglers=(Straggler(3, layer_ns=late_ns),),
    )


def even_pipeline(stages: int = 4, microbatches: int = 8) -> Plan:
    """Return a pipeline of even stages and free messages: its bubble is (p - 1) / (m + p - 1) exactly."""
    return Plan(
        pp=stages,
        microbatches=microbatches,
        layers=1,
        optimizer_ns=0,
        pipeline=Message(4_194_304, 0),
        input_copy=Copy(0, 0),
        host=IDEAL_HOST,
    )


def uneven_experts() -> Plan:
    """Return four ranks with one crowded expert device: 900 of 1,600 tokens go to member 2."""
    row = (200, 100, 900, 400)
    tokens = tuple(tuple(count // 4 for count in row) for _ in row)
    return Plan(dp_shard=4, ep=4, experts=Experts(tokens, ns_per_token=500))


def many_dimensions() -> Plan:
    """Return 32 ranks that use every dimension of parallelism at once."""
    return Plan(
        dp_replicate=2,
        dp_shard=2,
        cp=2,
        tp=2,
        pp=2,
        ep=2,
        steps=2,
        layers=1,
        microbatches=3,
        experts=Experts(((60, 40), (80, 20))),
        gradient_norm=Message(1, 15_000, "Float"),
        shard_copy_ns=4_000,
    )
