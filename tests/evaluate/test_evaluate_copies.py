"""A trace written anew in the place of another rank's is a copy, whatever its bytes."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from small_runs import codes, measured, write

from ccl_bench.base.lazy_imports import pl
from ccl_bench.run.copies import LEAST_DURATIONS, sketch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Trace = dict[str, object]


def recorded(rank: int, *, kernels: int = 200, durations: int = 0) -> Trace:
    """Return a trace whose kernels are 1 ms apart and scatter by ns, or last one of some whole us."""
    chance = random.Random(rank)
    events = []
    for number in range(kernels):
        event = {
            "ph": "X",
            "pid": 0,
            "tid": 7,
            "cat": "kernel",
            "name": "gemm",
            "args": {"correlation": number},
        }
        if durations:
            times = {"ts": 1000 * number, "dur": 100 + number % durations}
        else:
            times = {
                "ts": 1000 * number + chance.randrange(10**6) / 1000,
                "dur": chance.randrange(10**5) / 1000,
            }
        events.append(event | times)
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 3}, "traceEvents": events}


def events_of(trace: Trace) -> list[dict]:
    return trace["traceEvents"]  # type: ignore[return-value]


def later(trace: Trace) -> None:
    for event in events_of(trace):
        event["ts"] += 5_000_000


def other_process(trace: Trace) -> None:
    trace["traceEvents"] = [
        dict(reversed((event | {"pid": 3}).items())) for event in reversed(events_of(trace))
    ]


def without_each_third(trace: Trace) -> None:
    del events_of(trace)[::3]


def first_quarter(trace: Trace) -> None:
    later(trace)
    del events_of(trace)[50:]


def last_half(trace: Trace) -> None:
    del events_of(trace)[:100]


@pytest.mark.parametrize("change", [other_process, later, without_each_third, first_quarter, last_half])
def test_a_trace_that_was_written_anew_as_another_ranks_is_left_out(
    tmp_path: Path, change: Callable[[Trace], None]
) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}_trace.json", recorded(rank))
    (alone,) = measured(tmp_path, "gpu_busy")
    copy = recorded(1) | {"distributedInfo": {"rank": 2, "world_size": 3}}
    change(copy)
    (tmp_path / "rank2_trace.json").write_text(json.dumps(copy, indent=1))

    (found,) = measured(tmp_path, "gpu_busy")

    assert (found.value, found.ranks) == (alone.value, [0, 1])
    assert {"ranks-missing", "trace-overwritten"} <= {*codes(found)}
    lost = next(finding for finding in found.findings if finding.code == "trace-overwritten")
    assert (
        lost.message
        == "rank2_trace.json holds the recording of rank1_trace.json: the trace of rank 2 is lost"
    )


def test_of_two_copies_the_one_that_lacks_events_is_left_out(tmp_path: Path) -> None:
    part = recorded(5) | {"distributedInfo": {"rank": 0, "world_size": 3}}
    without_each_third(part)
    write(tmp_path / "rank0_trace.json", part)
    whole = recorded(5) | {"distributedInfo": {"rank": 1, "world_size": 3}}
    write(tmp_path / "rank1_trace.json", whole)
    (found,) = measured(tmp_path, "gpu_busy")
    assert found.ranks == [1]


def test_ranks_of_which_work_lasts_one_of_few_times_may_be_alike(tmp_path: Path) -> None:
    for rank in range(3):
        content = recorded(0, durations=LEAST_DURATIONS - 1) | {"run": rank}
        write(
            tmp_path / f"rank{rank}_trace.json",
            content | {"distributedInfo": {"rank": rank, "world_size": 3}},
        )
    (found,) = measured(tmp_path, "gpu_busy")
    assert found.ranks == [0, 1, 2]


@pytest.mark.parametrize(("kernels", "ranks"), [(31, [0, 1]), (32, [0])])
def test_too_few_equal_times_show_no_copy(tmp_path: Path, kernels: int, ranks: list[int]) -> None:
    for rank in (0, 1):
        content = recorded(0, kernels=kernels, durations=kernels) | {"run": rank}
        write(
            tmp_path / f"rank{rank}_trace.json",
            content | {"distributedInfo": {"rank": rank, "world_size": 3}},
        )
    (found,) = measured(tmp_path, "gpu_busy")
    assert found.ranks == ranks


def test_equal_times_in_less_than_half_of_a_trace_show_no_copy(tmp_path: Path) -> None:
    other = recorded(1)
    events_of(other)[:90] = events_of(recorded(0))[:90]
    for rank, content in enumerate((recorded(0), other)):
        write(tmp_path / f"rank{rank}_trace.json", content)
    (found,) = measured(tmp_path, "gpu_busy")
    assert found.ranks == [0, 1]


def test_a_sample_is_bounded_and_the_same_in_each_order() -> None:
    chance = random.Random(1)
    starts = [chance.randrange(10**12) for _ in range(50_000)]
    rows = pl.DataFrame({"start_ns": starts, "end_ns": [start + chance.randrange(10**6) for start in starts]})
    sample = sketch(rows)
    assert (len(sample.by_clock), len(sample.by_first)) == (256 * 8, 256 * 8)
    assert sketch(rows.sample(fraction=1, shuffle=True, seed=2)) == sample
