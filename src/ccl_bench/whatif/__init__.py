"""What a step would take if something were otherwise: a recorded run is replayed with other durations.

`operation_table` reads a table of operations, `schedule` finds what waits for what in it, and `graph` holds
and replays that. `run_graph` puts the operations of a run together, `meetings` finds where its ranks meet,
and `event_graph` replays it. `replays` is what both offer to `scenarios`, which change something, and to
`answer`, which says how much time each change is worth.
"""

from __future__ import annotations

from ccl_bench.whatif.answer import answer_what_if
from ccl_bench.whatif.operation_table import OperationTable, read_operation_table
from ccl_bench.whatif.replays import Replays, TableReplays
from ccl_bench.whatif.run_graph import RunGraph, load_run_graph
from ccl_bench.whatif.run_replays import RunReplays
from ccl_bench.whatif.scenarios import Scenario, parse_scenarios

__all__ = [
    "OperationTable",
    "Replays",
    "RunGraph",
    "RunReplays",
    "Scenario",
    "TableReplays",
    "answer_what_if",
    "load_run_graph",
    "parse_scenarios",
    "read_operation_table",
]
