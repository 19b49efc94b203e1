"""PyTorch's Execution Traces: operators and their operands, written by `ExecutionTraceObserver`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, register
from ccl_bench.trace.formats.execution_trace.recognition import identity, recognises

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

NAME = "execution_trace"


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.execution_trace.reader import read_execution_trace

    return read_execution_trace(stream, file)


EXECUTION_TRACE = register(
    Format(
        name=NAME,
        profile="torch",
        revision=3,
        tables=frozenset({"et_nodes", "et_products", "et_communication", "et_groups"}),
        recognises=recognises,
        identity=identity,
        read=_read,
    )
)
