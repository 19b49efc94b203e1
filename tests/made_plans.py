"""Plans of synthetic runs as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from ccl_bench.testing import Copy, Experts, Host, Message, Plan, Straggler

# No kernel takes less than 100 ns.
durations = st.integers(100, 5_000)
# A layer is several kernels, the shortest of which takes a tenth of it, give or take the jitter.
layers = st.integers(4_000, 10_000)
delays = st.integers(0, 5_000)
messages = st.builds(Message, st.integers(1, 10_000), durations)
hosts = st.builds(
    Host,
    launch_ns=st.integers(16, 200),
    latency_ns=st.integers(0, 300),
    gap_ns=st.integers(1, 1_000),
    between_steps_ns=st.integers(0, 50),
    waits_for_device=st.booleans(),
    steps_start_together=st.booleans(),
)


@st.composite
def made_plans(draw: st.DrawFn) -> Plan:
    """Draw a plan of up to 32 ranks in any dimensions of parallelism."""
    dp_shard, cp, tp, pp = (draw(st.integers(1, 2)) for _ in range(4))
    dp_replicate = draw(st.integers(1, 2))
    ep = draw(st.sampled_from([n for n in (1, 2, 4) if dp_shard * cp % n == 0]))
    row = st.tuples(*[st.integers(0, 50)] * ep)
    experts = st.builds(Experts, st.tuples(*[row] * ep), st.integers(0, 20), durations)
    world = dp_shard * cp * tp * pp * dp_replicate
    slow = st.builds(Straggler, st.integers(0, world - 1), delays, delays, delays)
    per_stage = st.one_of(layers, st.tuples(*[layers] * pp))
    return Plan(
        dp_replicate=dp_replicate,
        dp_shard=dp_shard,
        cp=cp,
        tp=tp,
        pp=pp,
        ep=ep,
        steps=draw(st.integers(1, 3)),
        layers=draw(st.one_of(st.integers(1, 2), st.tuples(*[st.integers(1, 2)] * pp))),
        microbatches=draw(st.integers(1, 3)),
        forward_ns=draw(per_stage),
        backward_ns=draw(per_stage),
        optimizer_ns=draw(durations),
        shard_copy_ns=draw(st.integers(100, 200)),
        prefetch=draw(st.booleans()),
        jitter_ns=draw(st.integers(0, 300)),
        seed=draw(st.integers(0, 9)),
        all_gather=draw(messages),
        reduce_scatter=draw(messages),
        gradient_all_reduce=draw(messages),
        tp_all_reduce=draw(messages),
        cp_exchange=draw(messages),
        pipeline=draw(messages),
        gradient_norm=draw(st.none() | messages),
        experts=draw(experts if ep > 1 else st.none() | experts),
        input_copy=Copy(1_000, draw(durations)),
        host=draw(hosts),
        stragglers=draw(st.lists(slow, max_size=2).map(tuple)),
    )
