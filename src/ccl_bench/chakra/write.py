"""The writer of Chakra execution traces, for every rank with an Execution Trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.analysis.execution_trace.calls import et_described_calls
from ccl_bench.base.errors import InputError
from ccl_bench.chakra.device_timing import TABLES, Timing, timing
from ccl_bench.chakra.graph import OperandTexts, RankTrace, nodes_of
from ccl_bench.chakra.protobuf import VERSION, attribute, framed, message
from ccl_bench.chakra.simulator import refuse_existing_files
from ccl_bench.schema import TABLES as RAW
from ccl_bench.storage import local_copy
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.formats import execution_trace
from ccl_bench.trace.formats.execution_trace.nodes import decoded, read_nodes
from ccl_bench.trace.json_array import Document
from ccl_bench.trace.values import whole

if TYPE_CHECKING:
    from ccl_bench.run import Run
    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.formats import TraceFile

_ET_TABLES = ("et_nodes", "et_communication", "et_groups")


@dataclass(frozen=True, slots=True)
class Exported:
    """One written file."""

    path: Path
    rank: int | None
    nodes: int
    """Number of nodes in it."""
    collectives: int
    """Number of communication nodes among them, including sends and receives."""
    rule: str
    """How operators were found in the Kineto trace: one of `linking.RULES`, or `none`."""
    rate: float
    """Share of matched operators."""


def export(run: Run, directory: str | Path, *, force: bool = False) -> list[Exported]:
    """Write `chakra.<rank>.et` into `directory` for each Execution Trace of `run`.

    Durations and device work come from the Kineto trace of the same rank, if there is one. Raises
    InputError if the run has no Execution Trace, UsageError if a file exists and `force` is not given.
    """
    traces = [trace for trace in run.traces if trace.form.name == execution_trace.NAME]
    if not traces:
        fix = "record one with torch.profiler.ExecutionTraceObserver"
        raise InputError("holds no Execution Trace to export", where=str(run.path), fix=fix)
    places = []
    for place, trace in enumerate(traces):
        window = "" if trace.iteration is None else f"iteration_{trace.iteration}."
        name = f"chakra.{window}{place if trace.rank is None else trace.rank}.et"
        places.append(Path(directory) / name)
    refuse_existing_files(places, force=force)
    return [_exported(run, trace, path) for trace, path in zip(traces, places, strict=True)]


def _exported(run: Run, trace: TraceFile, path: Path) -> Exported:
    content, _ = read_content(trace, _ET_TABLES)
    et_nodes = content.table("et_nodes")
    rank = content.rank if content.rank is not None else trace.rank
    # The times are those of the Kineto trace that fits best.
    kineto = [t for t in run.traces if t.form.name == "kineto" and t.rank == trace.rank]
    if trace.iteration is not None:
        kineto = [t for t in kineto if t.iteration == trace.iteration]
    timings = (timing(et_nodes, read_content(each, TABLES)[0]) for each in kineto)
    node_times = max(timings, key=lambda candidate: len(candidate.spans), default=Timing())
    identity = RAW["identity"].frame({"rank": [rank], "world_size": [content.world_size]})
    raw = content.table("et_communication")
    tensors = raw.select("node", "in_bytes", "out_bytes").unique("node", keep="first", maintain_order=True)
    calls = et_described_calls(raw, content.table("et_groups"), identity)
    calls = calls.join(tensors, on="node", how="left", maintain_order="left")
    rank_trace = RankTrace(et_nodes, calls, _operands(trace), rank)
    nodes = collectives = 0
    with storage.write_atomically(path) as temporary, temporary.open("wb") as stream:
        stream.write(framed(_metadata(content, rank)))
        for node in nodes_of(rank_trace, node_times):
            nodes, collectives = nodes + 1, collectives + any(a.name == "comm_size" for a in node.attr)
            stream.write(framed(node))
    rule, rate = (node_times.link.rule, node_times.link.rate) if node_times.link else ("none", 0.0)
    return Exported(path, rank, nodes, collectives, rule, rate)


def _operands(trace: TraceFile) -> dict[int, OperandTexts]:
    """Return inputs and outputs of every node as in the file."""
    operands: dict[int, OperandTexts] = {}

    def take(text: bytes) -> bool:
        nodes = decoded(text)
        for node in nodes or []:
            number = whole(node.id)
            if number is not None:
                sides = (node.read(), node.written())
                texts = [[_text(s.values), _text(s.shapes), _text(s.types)] for s in sides]
                schema = node.op_schema or node.attribute("op_schema") or ""
                operands[number] = OperandTexts(texts[0], texts[1], str(schema))
        return nodes is not None

    with local_copy(trace.path) as path, storage.open_file(path) as stream:
        read_nodes(stream, Document(), take)
    return operands


def _text(raw: bytes) -> str:
    return bytes(raw).decode("utf-8", "replace")


def _metadata(content: TraceContent, rank: int | None) -> Any:
    trace_attributes = content.attributes
    attributes = [
        attribute(key, "string", trace_attributes[f"et_{key}"])
        for key in ("schema", "time")
        if f"et_{key}" in trace_attributes
    ]
    numbers = {key: whole(trace_attributes.get(f"et_{key}")) for key in ("pid", "start_ts", "finish_ts")}
    numbers |= {"rank": rank, "world_size": content.world_size}
    attributes += [
        attribute(key, "uint64", value) for key, value in numbers.items() if value is not None and value >= 0
    ]
    return message("GlobalMetadata")(version=VERSION, attr=attributes)
