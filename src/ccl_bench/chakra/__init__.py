"""Execution Traces and their device work as Chakra execution traces, one protobuf file for each rank.

`graph` builds the nodes, `device_timing` finds their times in a Kineto trace, `protobuf` holds Chakra's
schema, and `write` writes the files. `communication` writes files of communication alone, without an
Execution Trace, and `simulator` the additional files for ASTRA-sim.
"""

from __future__ import annotations

from ccl_bench.chakra.communication import ExportedCommunication, export_communication
from ccl_bench.chakra.write import Exported, export

__all__ = ["Exported", "ExportedCommunication", "export", "export_communication"]
