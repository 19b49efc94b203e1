"""The communication calls of a run with everything that any of its traces knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.calls import CALL_COLUMNS
from ccl_bench.analysis.communication.peers import with_peers
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.execution_trace.et_calls import completed

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_polars import pl

_COLUMNS: dict[str, Any] = dict(CALL_COLUMNS)


@derived(across_ranks=True, **_COLUMNS)
def known_calls(
    calls: pl.DataFrame, et_calls: pl.DataFrame, listed_groups: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One communication call of one rank; an Execution Trace fills in what the other trace does not know."""
    ranks = facts.world_size.value if facts.world_size else None
    return with_peers(completed(calls, et_calls), listed_groups, ranks)
