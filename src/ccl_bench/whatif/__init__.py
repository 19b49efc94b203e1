"""What-if analysis: a recorded run is replayed with other durations of its operations.

`operation_table` reads a table of operations, and `schedule` derives its dependencies. `run_graph` builds the
operations of a run from its traces, and `meetings` matches them across ranks. `event_graph` replays both.
`replays` and `run_replays` apply `scenarios`, and `answer` computes the gain of each; `critical_path` finds
the critical path. `simulations` compares a simulation with ASTRA-sim with the run and its replay.
"""

from __future__ import annotations

from ccl_bench.whatif.answer import answer_what_if
from ccl_bench.whatif.operation_table import OperationTable, read_operation_table
from ccl_bench.whatif.replays import Replays, TableReplays
from ccl_bench.whatif.run_graph import RunGraph, load_run_graph
from ccl_bench.whatif.run_replays import RunReplays
from ccl_bench.whatif.scenarios import Scenario, parse_scenarios
from ccl_bench.whatif.simulations import compare_simulation

__all__ = [
    "OperationTable",
    "Replays",
    "RunGraph",
    "RunReplays",
    "Scenario",
    "TableReplays",
    "answer_what_if",
    "compare_simulation",
    "load_run_graph",
    "parse_scenarios",
    "read_operation_table",
]
