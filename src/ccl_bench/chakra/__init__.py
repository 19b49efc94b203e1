"""Chakra execution traces of a run, one protobuf file for each rank, and simulations of it with ASTRA-sim.

`write` writes Execution Traces and their device work: `graph` builds the nodes, `device_timing` finds their
times in a Kineto trace, `protobuf` holds Chakra's schema. `communication` writes communication alone.
`simulation` writes a folder for ASTRA-sim: `workload` holds the steps, `simulator` describes the machine.
`simulated` reads the output of ASTRA-sim.
"""

from __future__ import annotations

from ccl_bench.chakra.communication import ExportedCommunication, export_communication
from ccl_bench.chakra.simulation import Simulation, write_simulation
from ccl_bench.chakra.write import Exported, export

__all__ = [
    "Exported",
    "ExportedCommunication",
    "Simulation",
    "export",
    "export_communication",
    "write_simulation",
]
