"""The rule `uneven_experts`: experts of some ranks get more tokens than others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import ranks_do
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.experts import expert_loads, expert_work, with_even_experts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="ranks")
def uneven_experts(gains: Gains, traffic: pl.DataFrame) -> Iterator[Opportunity]:
    """The experts of some ranks get more tokens than those of others, which wait for them.

    How it is seen:
    The bytes that each rank receives in uneven all-to-alls show its tokens. Compute between
    such an all-to-all and the next belongs to experts; the run is replayed with the time of a mean load on
    all ranks.

    Why it costs:
    The ranks synchronise in the all-to-all that returns tokens, so the busiest rank sets the
    pace of each layer.

    What to do:
    Balance the router: a larger weight of the auxiliary loss (Megatron --moe-aux-loss-coeff), a bias for each
    expert (--moe-router-enable-expert-bias; torchtitan load_balance_coeff; DeepSeek-V3), a capacity
    (--moe-expert-capacity-factor), copies of hot experts (vLLM --enable-eplb), or another placement.

    When it is no problem:
    Early in training routers are always uneven. Look at later steps.

    Reference:
    "GShard" (arXiv 2006.16668); "DeepSeek-V3 Technical Report" (arXiv 2412.19437), section 2.1.2
    """
    loads = expert_loads(traffic)
    work = expert_work(gains, loads)
    if not work.any():
        raise Silent("the traces show no uneven all-to-alls around computing")
    most = max(loads.values())
    full = sorted(rank for rank, load in loads.items() if load > (1 + most) / 2)
    up_to, whose = ("", "its") if len(full) == 1 else ("up to ", "their")
    tokens = f"{up_to}{most:.1f} times the mean tokens"
    yield from gains.sure(
        with_even_experts(gains, work, loads),
        title=f"{ranks_do(full, 'gets', 'get')} {tokens} for {whose} experts",
        remedy="balance the router, or replicate the busiest experts",
        change="experts of all ranks take the time of a mean load",
        ranks=full,
    )
