"""Spoiled runs are spoiled in the way that was asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ccl_bench.base.errors import UsageError
from ccl_bench.testing import Style, damage, plans, trace_path, write_run
from ccl_bench.testing.kineto_templates import BASE_NS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=[Style(), Style(is_pretty=True)], ids=["compact", "pretty"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    write_run(plans.two_ranks(), tmp_path, style=request.param)
    return trace_path(tmp_path, 0), trace_path(tmp_path, 1)


def test_a_rank_left_out_is_gone(run):
    damage.leave_out(run[1])
    assert [path.exists() for path in run] == [True, False]


def test_a_truncated_file_is_no_json(run):
    size = run[0].stat().st_size
    assert damage.truncate(run[0], 0.5) == size // 2 == run[0].stat().st_size
    with pytest.raises(json.JSONDecodeError):
        json.loads(run[0].read_text())


def test_swapped_names_show_the_wrong_rank(run):
    damage.swap_names(*run)
    assert [json.loads(path.read_text())["distributedInfo"]["rank"] for path in run] == [1, 0]


def test_a_shifted_clock_moves_the_base_alone(run):
    before = json.loads(run[0].read_text())
    damage.shift_clock(run[0], 2_500)
    after = json.loads(run[0].read_text())
    assert after.pop("baseTimeNanoseconds") == before.pop("baseTimeNanoseconds") + 2_500 == BASE_NS + 2_500
    assert after == before


def test_a_file_can_claim_another_rank(run):
    damage.claim_rank(run[1], 0)
    content = json.loads(run[1].read_text())
    assert content["distributedInfo"]["rank"] == 0
    assert content["distributedInfo"]["world_size"] == 2


def test_lost_kernels_are_gone_and_nothing_else(run):
    before = json.loads(run[0].read_text())["traceEvents"]
    lost = damage.lose_kernels(run[0], every=4)
    after = json.loads(run[0].read_text())["traceEvents"]
    kernels = [event for event in before if event.get("cat") == "kernel"]
    assert lost == len(kernels[::4]) == len(before) - len(after) > 0
    assert [event for event in after if event.get("cat") == "kernel"] == [
        event for number, event in enumerate(kernels) if number % 4
    ]


def test_mixed_traces_hold_the_events_of_both(run):
    events = [json.loads(path.read_text())["traceEvents"] for path in run]
    damage.mix_in(*run)
    assert json.loads(run[0].read_text())["traceEvents"] == events[0] + events[1]


def test_garbled_bytes_are_no_text(run):
    damage.garble(run[0], at=5_000)
    with pytest.raises(UnicodeDecodeError):
        run[0].read_text(encoding="utf-8")


def test_a_clock_without_a_base_cannot_be_shifted(tmp_path: Path):
    style = Style(has_absolute_times=True, compresses=True)
    write_run(plans.two_ranks(), tmp_path, style=style)
    with pytest.raises(UsageError, match="does not hold"):
        damage.shift_clock(trace_path(tmp_path, 0, style=style), 1)
