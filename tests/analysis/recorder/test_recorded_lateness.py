"""Who comes late, from Flight Recorder dumps: waits by hand, clocks from ends of calls, what is refused."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import gloo_hangs
import pytest
from flight_recorder import call, dump, tables_of
from recordings import recording

import ccl_bench as ccl
from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.analysis.recorder.lateness import recorded_arrivals
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.straggler import straggler_of_recorded_calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

MS = 1_000_000
NAMES = ("recorded_calls", "recorded_groups", "recorder_dumps")


def arrivals(
    times_ms: Mapping[int, Sequence[float]],
    ends_ms: Mapping[int, Sequence[float]] | None = None,
    facts: Facts | None = None,
) -> pl.DataFrame:
    """Return the arrivals of ranks that make all-reduces at these times, and see them end at those."""
    dumps = {
        rank: dump(
            [
                call("all_reduce", number, at_ms=at, ended_ms=ends_ms[rank][number - 1] if ends_ms else None)
                for number, at in enumerate(times, start=1)
            ]
        )
        for rank, times in times_ms.items()
    }
    tables = tables_of(dumps)
    return recorded_arrivals(*(tables[name] for name in NAMES), facts or Facts())


def test_a_rank_that_calls_late_is_waited_for() -> None:
    """Rank 1 calls 3 ms and 5 ms after rank 0, who waits 8 of the 105 ms from the first call to the last."""
    found = straggler_of_recorded_calls(arrivals({0: (0, 100), 1: (3, 105)}), Facts())
    assert found.value == pytest.approx(8 / 105)
    assert found.details["slowest_rank"] == "1"
    assert found.details["wait_s"] == {"0": pytest.approx(0.008), "1": 0.0}
    assert found.details["mean_lateness_s"] == {"0": 0.0, "1": pytest.approx(0.004)}
    assert [each.code for each in found.findings] == ["other-source", "recorder-clocks"]


def test_what_is_waited_in_two_calls_at_once_counts_once() -> None:
    """Rank 0 calls twice before rank 1 comes: it waits from 0 to 10 ms, not for 10 and for 9 ms."""
    found = straggler_of_recorded_calls(arrivals({0: (0, 1), 1: (10, 10)}), Facts())
    assert found.details["wait_s"]["0"] == pytest.approx(0.010)


def test_ranks_that_come_together_name_no_one() -> None:
    found = straggler_of_recorded_calls(arrivals({0: (0, 1000), 1: (1, 1000)}), Facts())
    assert (found.details["slowest_rank"], found.details["late_ranks"]) == ("none", [])


def test_a_call_that_a_member_lacks_and_one_that_nobody_waits_in_do_not_count() -> None:
    lacking = arrivals({0: (0, 10, 20), 1: (1, 11)})
    assert lacking["sequence"].unique().to_list() == [1, 2]
    tables = tables_of({rank: dump([call("broadcast", 1, at_ms=rank)]) for rank in (0, 1)})
    assert recorded_arrivals(*(tables[name] for name in NAMES), Facts()).is_empty()


def test_clocks_that_ends_of_calls_allow_stay_as_recorded() -> None:
    """Each saw the ends 4 ms after the last call: neither clock is more than 4 ms ahead of the other."""
    found = arrivals({0: (0, 100), 1: (0, 100)}, {0: (4, 104), 1: (4, 104)})
    assert found["clock_shift_ns"].to_list() == [0] * 4
    assert found["clock_error_ns"][0] == 8 * MS


def test_a_clock_that_ends_contradict_is_moved() -> None:
    """Rank 1's clock is 50 ms ahead: both call at once, and rank 0 sees an end before rank 1's call."""
    found = arrivals({0: (0, 100), 1: (50, 150)}, {0: (4, 104), 1: (54, 154)})
    shifts = dict(found.select("rank", "clock_shift_ns").unique().iter_rows())
    assert shifts == {0: 0, 1: 50 * MS}
    assert found["lateness_ns"].to_list() == [0] * 4
    assert found["clock_error_ns"][0] == 8 * MS


def test_ends_that_no_clocks_explain_show_nothing() -> None:
    """Both see an end before either called."""
    found = arrivals({0: (10, 100), 1: (10, 100)}, {0: (5, 104), 1: (5, 104)})
    assert found["clock_error_ns"].to_list() == [None] * 4


def test_ranks_on_several_hosts_without_ends_are_refused() -> None:
    facts = Facts(world_size=Fact(2, "card"), devices_per_node=Fact(1, "card"))
    with pytest.raises(NotMeasurable, match="several hosts"):
        straggler_of_recorded_calls(arrivals({0: (0, 100), 1: (3, 105)}), facts)
    ended = arrivals({0: (0, 100), 1: (3, 105)}, {0: (4, 106), 1: (4, 106)})
    assert straggler_of_recorded_calls(ended, facts).value == pytest.approx(8 / 105)


def test_one_call_is_too_few() -> None:
    with pytest.raises(NotMeasurable, match="fewer than two calls"):
        straggler_of_recorded_calls(arrivals({0: (0,), 1: (3,)}), Facts())


def plain_waits(run: Path) -> dict[str, float]:
    """Return rank -> s from its calls to those of the last rank, read from the dumps call by call."""
    made: dict[int, dict[str, int]] = {}
    for file in run.glob("comm_lib_trace_rank_*"):
        for each in pickle.loads(file.read_bytes())["entries"]:
            made.setdefault(each["collective_seq_id"], {})[file.name[-1]] = each["time_created_ns"]
    waits = dict.fromkeys(map(str, range(gloo_hangs.RANKS)), 0.0)
    for times in made.values():
        for rank, called in times.items():
            waits[rank] += (max(times.values()) - called) / 1e9
    return waits


def test_the_rank_that_sleeps_in_a_recorded_job_is_the_straggler(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run: Path = recording(tmp_path_factory, "hangs") / "late"
    found = ccl.open(run, use_cache=False).metric("straggler")
    slept_s = gloo_hangs.ROUNDS * gloo_hangs.DELAY_S
    waits = plain_waits(run)
    assert found.status == "ok", found.reason
    assert found.window == "calls in Flight Recorder dumps"
    assert found.details["wait_s"] == pytest.approx(waits, abs=1e-6)
    assert found.details["slowest_rank"] == min(waits, key=waits.__getitem__)
    assert min(wait for rank, wait in waits.items() if rank != str(gloo_hangs.DELAYED)) >= slept_s
    assert [each.code for each in found.findings] == ["other-source", "recorder-clocks"]


def test_traces_come_before_dumps(tmp_path: Path) -> None:
    """Where a profiler recorded the run, `straggler` is of its steps."""
    from commands import EXAMPLE
    from flight_recorder import write_dumps

    run = tmp_path / "run"
    run.mkdir()
    for file in EXAMPLE.iterdir():
        (run / file.name).symlink_to(file)
    calls = [call("all_reduce", number, at_ms=number) for number in (1, 2)]
    write_dumps(run / "dumps", {rank: dump(calls) for rank in range(4)})
    assert ccl.open(run).metric("straggler").window == "matched collectives inside steps"
