"""Sharding in runs that torch recorded, against a count in plain Python."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import polars as pl
import pytest
from local_plain import Event, Interval, Trace, clip, interval, length, trace_of, union
from local_traces import result, table
from recordings import recording
from sharded_training import KINDS, RANKS

CALLS = ("c10d::", "_c10d_functional::", "record_param_comms")
DISPATCHED = re.compile(r"(?!autograd::|torch::)[a-z_]\w*::[\w.]+")


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each way of sharding."""
    return recording(tmp_path_factory, "sharded")


def own_ranges(trace: Trace) -> dict[int, list[Interval]]:
    """Return the ranges of FSDP in which the model does not run, by thread."""
    found: dict[int, list[Interval]] = {}
    for event in trace.of("user_annotation"):
        name = event["name"]
        if name.startswith(("FSDP::", "FullyShardedDataParallel.")) and not name.endswith(".forward"):
            found.setdefault(event["tid"], []).append(interval(event))
    return found


def computing(trace: Trace) -> Iterator[Event]:
    """Yield operators of the dispatcher that call no communication, and others that call nothing."""
    by_thread: dict[int, list[Event]] = {}
    for event in trace.of("cpu_op"):
        by_thread.setdefault(event["tid"], []).append(event)
    for events in by_thread.values():
        events.sort(key=lambda e: (interval(e)[0], -interval(e)[1]))
        covered = 0
        for place, event in enumerate(events):
            name, (_, end) = event["name"], interval(event)
            called = list(takewhile(lambda e, end=end: interval(e)[0] < end, events[place + 1 :]))
            is_call = any(e["name"].startswith(CALLS) for e in [event, *called])
            if end > covered and not is_call and (not called or DISPATCHED.fullmatch(name)):
                covered = end
                yield event


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_ranges_of_fsdp_launch_is_sharding(recorded: Path, kind: str) -> None:
    run = recorded / kind
    rows = table(run, "fsdp")
    for rank in range(RANKS):
        trace = trace_of(run / f"rank{rank}.json")
        inside = own_ranges(trace)

        def is_own(event: Event, inside: dict[int, list[Interval]] = inside) -> bool:
            at = interval(event)[0]
            return any(start <= at < end for start, end in inside.get(event["tid"], []))

        calls = sorted((e for e in trace.of("cpu_op") if e["name"].startswith("c10d::")), key=interval)
        ranges = sorted(interval(e) for e in trace.of("user_annotation") if e["name"].startswith("gloo:"))
        assert len(calls) == len(ranges)
        sharding = [interval(event) for event in computing(trace) if is_own(event)]
        sharding += [span for span, call in zip(ranges, calls, strict=True) if is_own(call)]
        own = rows.filter(pl.col("rank") == rank)
        assert own.height == 2
        for (_, window, _), row in zip(trace.steps, own.iter_rows(named=True), strict=True):
            assert row["work_ns"] == length(union(clip(sharding, window)))
            assert row["work_ns"] > 0
            hosts = [span for spans in inside.values() for span in spans]
            assert row["host_ns"] == length(union(clip(hosts, window)))


@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_gathers_and_reduces(recorded: Path, kind: str) -> None:
    """Two layers gather forward and backward and reduce once; the root has no weights of its own."""
    rows = table(recorded / kind, "fsdp")
    assert rows["all_gathers"].to_list() == [4] * rows.height
    assert rows["reduce_scatters"].to_list() == [2] * rows.height
    found = result(recorded / kind, "fsdp_overhead")
    assert found.status == "ok", found.reason
    assert found.value is not None
    assert 0 < found.value <= 100
