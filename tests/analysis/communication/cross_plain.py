"""Counts of the same files by plain Python over json.load, with nothing of the library in them."""

from collections import defaultdict
from typing import Any

Document = dict[str, Any]


def nccl_kernels(trace: Document) -> list[tuple[float, float]]:
    """Return (start, duration) of the NCCL kernels of a trace in order of start, us."""
    events = [e for e in trace["traceEvents"] if e.get("cat") == "kernel" and "nccl" in e["name"].lower()]
    return sorted((event["ts"], event["dur"]) for event in events)


def waits(durations: dict[int, list[float]]) -> dict[int, float]:
    """Return rank -> total wait: the k-th duration beyond the shortest k-th duration of any rank."""
    shortest = [min(row) for row in zip(*durations.values(), strict=True)]
    return {
        rank: sum(own - least for own, least in zip(row, shortest, strict=True))
        for rank, row in durations.items()
    }


def caused(durations: dict[int, list[float]]) -> dict[int, float]:
    """Return rank -> sum of the longest waits in those collectives that it alone was the last to reach."""
    found: dict[int, float] = defaultdict(float)
    for row in zip(*durations.values(), strict=True):
        last = [rank for rank, own in zip(durations, row, strict=True) if own == min(row)]
        if len(last) == 1:
            found[last[0]] += max(row) - min(row)
    return dict(found)


def recorded_calls(trace: Document) -> list[dict[str, Any]]:
    """Return the arguments of every `record_param_comms`, in order of start."""
    events = [e for e in trace["traceEvents"] if e.get("name") == "record_param_comms" and e.get("ph") == "X"]
    return [event["args"] for event in sorted(events, key=lambda event: event["ts"])]


WIDTHS = {"Float": 4, "BFloat16": 2, "Half": 2, "Long": 8, "Int": 4, "Double": 8, "Byte": 1}


def message_bytes(arguments: dict[str, Any]) -> int:
    """Return the message of a call as nccl-tests counts it: what all_gather gives, else what goes in."""
    gathers = arguments["Collective name"] == "_allgather_base"
    side = "Out msg nelems" if gathers else "In msg nelems"
    return arguments[side] * WIDTHS[arguments["dtype"]]
