"""What a step would take if something were otherwise: a recorded run is replayed with other durations.

`operation_table` reads a table of operations, `schedule` finds what waits for what in it, `graph` holds and
replays that, `scenarios` names what is changed, and `answer` says how much time each change is worth.
"""

from __future__ import annotations

from ccl_bench.whatif.answer import WhatIf, answer_what_if, to_json
from ccl_bench.whatif.operation_table import OperationTable, read_operation_table
from ccl_bench.whatif.scenarios import Scenario, parse_scenarios

__all__ = [
    "OperationTable",
    "Scenario",
    "WhatIf",
    "answer_what_if",
    "parse_scenarios",
    "read_operation_table",
    "to_json",
]
