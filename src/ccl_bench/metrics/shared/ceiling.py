"""The ceiling of collectives on these machines: the times that nccl-tests measured at the same sizes.

Between two measured sizes the logarithm of time is interpolated over that of size, which is exact where
latency or bandwidth alone determines the time. Below the smallest and above the largest size there is no
ceiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.bandwidth import known_bus_factor
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.catalog.collective_reference import time_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.side_files import NcclTests
    from ccl_bench.side_files.nccl_tests import Measured

_MESSAGES = {"send": "send_recv", "recv": "send_recv"}

REACHES = {True: "between nodes", False: "inside a node", None: "unknown"}
"""Whether calls span nodes → their reach, in words."""


def with_ceiling(transfers: pl.DataFrame, tests: NcclTests | None) -> pl.DataFrame:
    """Return transfers with `ceiling_ns`, the time that nccl-tests took for the same, and what it `lacks`.

    One of the two is null.
    """
    keys = ["collective", "size", "spans_nodes", "size_bytes", "bus_factor"]
    kinds = transfers.select(keys).unique(maintain_order=True)
    ceilings = [_ceiling(tests.measured if tests else (), *row) for row in kinds.iter_rows()]
    looked_up = kinds.with_columns(
        pl.Series("ceiling_ns", [time for time, _ in ceilings], dtype=pl.Float64),
        pl.Series("lacks", [why for _, why in ceilings], dtype=pl.String),
    )
    return transfers.join(looked_up, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _ceiling(
    measured: Sequence[Measured],
    collective: str,
    ranks: int | None,
    spans_nodes: bool | None,
    size_bytes: int,
    factor: float | None,
) -> tuple[float | None, str | None]:
    """Return the time that nccl-tests took, ns, or why it is unknown."""
    name = _MESSAGES.get(collective, collective)
    of_collective = [one for one in measured if one.collective == name]
    if not of_collective:
        return None, f"no {name} was measured"
    if ranks is None:
        return None, "the size of their group is unknown"
    if factor is None or factor != known_bus_factor(name, ranks):
        return None, f"their parts have different sizes, unlike the {name} that was measured"
    of_ranks = [one for one in of_collective if one.ranks == ranks]
    if not of_ranks:
        counts = " and ".join(map(str, sorted({one.ranks for one in of_collective})))
        return None, f"{name} was measured over {counts} ranks, not over {ranks}"
    reaches = {_reach(one.hosts) for one in of_ranks}
    if spans_nodes is None and len(reaches - {None}) > 1:
        return None, "whether they cross nodes is unknown"
    if spans_nodes is not None and not reaches & {spans_nodes, None}:
        return None, f"no {name} over {ranks} ranks was measured {REACHES[spans_nodes]}"
    shortest: dict[int, float] = {}
    for one in of_ranks:
        if spans_nodes is None or _reach(one.hosts) in {spans_nodes, None}:
            shortest[one.size_bytes] = min(one.time_s, shortest.get(one.size_bytes, one.time_s))
    sizes = sorted(shortest)
    if not sizes[0] <= size_bytes <= sizes[-1]:
        return None, f"{name} over {ranks} ranks was measured from {sizes[0]} to {sizes[-1]} bytes"
    return time_at(size_bytes, sizes, [shortest[size] for size in sizes]) * SECOND_NS, None


def _reach(hosts: int | None) -> bool | None:
    return None if hosts is None else hosts > 1
