"""Execution Traces and their device work as Chakra execution traces, one protobuf file for each rank."""

from __future__ import annotations

from ccl_bench.chakra.write import Exported, export

__all__ = ["Exported", "export"]
