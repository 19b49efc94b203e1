"""Write small Kineto traces by hand, in the layouts that PyTorch has used."""

import json

from both_ways import checked

from ccl_bench.trace.content import TraceContent


class Text(str):
    """JSON text that is written as it stands, such as a number with 17 digits."""


def event(cat, name="work", ts=0, dur=10, *, pid=1, tid=1, ph="X", **args):
    """Return one event; names of arguments with spaces are given as `**{"External id": 5}`."""
    found = {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return found | ({"args": args} if args else {})


def kernel(name="gemm", ts=0, dur=10, *, stream=7, correlation=1, **args):
    """Return one kernel event on device 0."""
    place = {"device": 0, "stream": stream, "correlation": correlation}
    return event("kernel", name, ts, dur, pid=0, tid=stream, **place, **args)


def json_text(value) -> str:
    """Return `value` as JSON, `Text` as it stands."""
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return json.dumps(value)


def pretty(events, after=None, **before) -> bytes:
    """Return a trace as PyTorch up to 2.x laid it out: many lines, `traceName` after the events."""
    head = "".join(f"  {json.dumps(key)}: {json_text(value)},\n" for key, value in before.items())
    shown = ",\n".join(_pretty_event(e) for e in events)
    tail = {"traceName": "./trace.json"} if after is None else after
    ending = ",\n  ".join(f"{json.dumps(key)}: {json_text(value)}" for key, value in tail.items())
    return f'\n{{\n  "schemaVersion": 1,\n{head}  "traceEvents": [\n{shown}\n  ],\n  {ending}\n}}'.encode()


def _pretty_event(found) -> str:
    parts = {key: json_text(value) for key, value in found.items() if key != "args"}
    first = ", ".join(f'"{key}": {parts[key]}' for key in ("ph", "cat", "name", "pid", "tid") if key in parts)
    second = ", ".join(f'"{key}": {text}' for key, text in parts.items() if f'"{key}"' not in first)
    text = f"  {{\n    {first}" + (f",\n    {second}" if second else "")
    if "args" in found:
        inner = ", ".join(f"{json.dumps(k)}: {json_text(v)}" for k, v in found["args"].items())
        text += f',\n    "args": {{\n      {inner}\n    }}'
    return text + "\n  }"


def compact(events, after=None, **before) -> bytes:
    """Return a trace as PyTorch 2.13 lays it out: no white space, all metadata before the events."""
    whole = {"schemaVersion": 1, **before, "traceEvents": list(events), **(after or {})}
    return _without_spaces(whole).encode()


def bare(events, *, closed=True) -> bytes:
    """Return a trace that is an array of events and nothing else."""
    text = "[\n" + ",\n".join(map(json_text, events))
    return (text + ("\n]\n" if closed else ",\n")).encode()


def _without_spaces(value) -> str:
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_without_spaces(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_without_spaces, value)) + "]"
    return json.dumps(value)


LAYOUTS = {"pretty": pretty, "compact": compact}


def op(name, ts, **more):
    """Return one operator that takes a microsecond."""
    return event("cpu_op", name, ts, 1, **more)


def many(count=40):
    """Return operators `op0`, `op1`, ... with arguments of the shapes that real ones have."""
    shapes = {"Input Dims": [[4, 2048], [], [[1]]], "Concrete Inputs": ["", "[-1]", "}, {"]}
    return [op(f"op{n}", n, **{"External id": n, **shapes}) for n in range(count)]


def read(data: bytes) -> TraceContent:
    """Return the content of the trace in `data`, read natively and by the decoder alike."""
    return checked(data)


def finding_codes(content: TraceContent) -> list[str]:
    """Return the codes of what was found wrong."""
    return [finding.code for finding in content.findings]


def lost(content: TraceContent) -> int:
    """Return how many events are reported as lost."""
    return sum(finding.count for finding in content.findings if finding.code == "events-lost")


def names(content: TraceContent, table="cpu_ops") -> list[str]:
    """Return the names in a table, in order."""
    return content.table(table)["name"].cast(str).to_list()
