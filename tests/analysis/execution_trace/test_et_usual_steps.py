"""Steps, messages and traffic of Execution Traces, from nodes written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ccl_bench.analysis.execution_trace.calls import et_described_calls, et_steps
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    import polars as pl


def _table(name: str, *rows: dict[str, Any]) -> pl.DataFrame:
    known = TABLES[name]
    return known.frame({column: [row.get(column) for row in rows] for column in known.columns})


def test_a_trace_without_marks_is_one_step_with_the_number_0() -> None:
    nodes = _table(
        "et_nodes", {"node": 7, "name": "b"}, {"node": 3, "name": "a"}, {"node": None, "name": "c"}
    )
    assert et_steps(nodes).rows() == [(0, 3, "whole trace")]


def test_marked_steps_begin_at_their_first_node() -> None:
    marked = [(2, "ProfilerStep#5"), (9, "ProfilerStep#6"), (12, "ProfilerStep#5"), (13, "ProfilerStep#x")]
    nodes = _table("et_nodes", *({"node": node, "name": name} for node, name in marked))
    assert et_steps(nodes).rows() == [(5, 2, "ProfilerStep"), (6, 9, "ProfilerStep")]


@pytest.mark.parametrize(("place", "peer"), [(0, 4), (1, 6), (2, None), (-1, None), (None, None)])
def test_the_peer_of_a_message_is_at_its_place_in_the_group(place: int | None, peer: int | None) -> None:
    groups = _table("et_groups", {"name": "1", "size": 2, "ranks": [4, 6]})
    sent = {"node": 1, "name": "send", "group_name": "1", "group_size": 2, "rank_argument": place}
    calls = _table("et_communication", sent)
    identity = TABLES["identity"].frame({"rank": [4], "world_size": [8]})
    assert et_described_calls(calls, groups, identity)["peer"].to_list() == [peer]
