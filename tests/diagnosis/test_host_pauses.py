"""Pauses of hosts: which of them are named, with their place, and what of the idle time they explain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from injected import PAIR, SHARDED, diagnosed, only
from local_traces import kernel, launch, note, op, step, write

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.result.diagnosis import Diagnosed, IdlePart, Opportunity
from ccl_bench.run import open_run
from ccl_bench.testing import Straggler

if TYPE_CHECKING:
    from pathlib import Path

    from local_traces import Event

STEPS, PAUSE, KERNEL = 4, 1_500, 5_000


def paused(kernel_us: int = KERNEL, around: str = "", category: str = "range") -> list[Event]:
    """Return steps that begin with a pause of 1.5 ms, launch one kernel, and wait for it; us.

    The launch takes 5 us and the step ends 10 us after the kernel, so that it takes 1,515 us and the kernel.
    `around` names a range, or an operator, around each pause.
    """
    events: list[Event] = []
    at = 0
    for number in range(1, STEPS + 1):
        begin, at = at, at + PAUSE
        end = at + 5 + kernel_us
        if around:
            events.append((note if category == "range" else op)(around, begin, at))
        events += [
            launch(number, at, at + 5),
            kernel("gemm", number, at + 5, end),
            launch(0, at + 5, end, name="cudaDeviceSynchronize"),
            step(number, begin, end + 10),
        ]
        at = end + 10
    return events


def found_in(folder: Path, *ranks: list[Event]) -> Diagnosed:
    return diagnose(open_run(write(folder, *ranks)), jobs=1, use_cache=False)


def named(found: Diagnosed, name: str) -> Opportunity:
    (opportunity,) = (each for each in found.diagnoses if each.name == name)
    return opportunity


@pytest.mark.parametrize(
    ("around", "category", "place"),
    [
        ("", "", "in no named range or operator"),
        ("evaluation", "range", "in evaluation"),
        ("aten::item", "operator", "in aten::item"),
    ],
)
def test_a_pause_in_every_step_is_named_by_what_is_around_it(
    tmp_path: Path, around: str, category: str, place: str
) -> None:
    """Without it each step is shorter by 1,500 us, and by the 10 us before it, the last one by 1,500."""
    found = found_in(tmp_path, paused(around=around, category=category))
    pause = named(found, "host_pauses")
    assert pause.title == f"Hosts launch nothing for up to 1.5 ms, {place}"
    assert pause.gain_s == pytest.approx((1_510 * 3 + 1_500) / 4 / 1e6)
    assert (pause.ranks, pause.steps) == ([], [1, 2, 3, 4])
    assert "launch_bound" in found.silent


@pytest.mark.parametrize(("kernel_us", "reports"), [(28_600, True), (28_700, False)])
def test_a_pause_must_cost_5_percent_of_the_step(tmp_path: Path, kernel_us: int, reports: bool) -> None:
    """The gain of 1,507.5 us is 5.006 % of 30,115 us, and 4.989 % of 30,215 us."""
    found = found_in(tmp_path, paused(kernel_us))
    assert ("host_pauses" in {each.name for each in found.diagnoses}) == reports
    assert ("host_pauses" in found.silent) != reports


def test_hosts_that_pause_are_not_slow_to_launch(tmp_path: Path) -> None:
    """Of each step of 6,515 us the device is idle for 1,515: 1,500 in pauses, 15 beside them."""
    found = found_in(tmp_path, paused())
    assert found.silent["launch_bound"].startswith("devices are idle for 0.")
    assert found.verdict is not None
    assert found.verdict.parts["idle"] == pytest.approx(1_515 / 6_515)
    # The first pause begins with the recording; those after it 10 us earlier, when the wait has ended.
    pauses, launching = (1_500 + 3 * 1_510) / 4 / 6_515, (3 * 5 + 15) / 4 / 6_515
    assert found.verdict.idle == [
        IdlePart("unnamed pause", pytest.approx(pauses)),
        IdlePart("launching", pytest.approx(launching)),
    ]


def loading(*names: str) -> list[Event]:
    """Return a step for each kernel of these names, whose launch takes 3 ms; us.

    Until then the device works on what was launched just before, so that the loading alone costs nothing; but
    the next launch comes 3 ms later, when the device has been idle for 1.9 ms.
    """
    events: list[Event] = []
    at = 0
    for number, name in enumerate(names):
        calls = [(at + 10, at + 20), (at + 20, at + 3_020), (at + 3_020, at + 3_030)]
        works = [
            ("gemm", at + 15, at + 1_015),
            (name, at + 1_015, at + 1_115),
            ("gemm", at + 3_025, at + 8_000),
        ]
        for k, ((start, end), (kind, begin, until)) in enumerate(zip(calls, works, strict=True)):
            correlation = 1 + 3 * number + k
            events += [launch(correlation, start, end), kernel(kind, correlation, begin, until)]
        events += [
            launch(0, at + 3_030, at + 8_000, name="cudaDeviceSynchronize"),
            step(number, at, at + 8_010),
        ]
        at += 8_010
    return events


def test_launches_that_are_long_once_are_module_loading_and_others_pauses(tmp_path: Path) -> None:
    """Four kernels are each launched once; one kernel is launched four times, too often to load it each time.

    Without the 3 ms the third kernel starts as the second one ends, 1,910 us sooner.
    """
    found = found_in(tmp_path / "first", loading("a", "b", "c", "d"))
    names = {each.name for each in found.diagnoses}
    assert "compilation_in_steps" in names
    assert "host_pauses" not in names
    first = named(found, "compilation_in_steps")
    assert first.title == "Hosts compile or load modules in the step: cudaLaunchKernel"
    assert first.gain_s == pytest.approx(0.00191)
    assert found.verdict is not None
    assert found.verdict.idle[0] == IdlePart("first use", pytest.approx(1_905 / 8_010), "cudaLaunchKernel")
    again = found_in(tmp_path / "again", loading("a", "a", "a", "a"))
    assert named(again, "host_pauses").title == "Hosts launch nothing for up to 3.0 ms, in cudaLaunchKernel"
    assert named(again, "host_pauses").gain_s == pytest.approx(0.00191)
    assert "compilation_in_steps" not in {each.name for each in again.diagnoses}


BY_TURNS = {
    2: replace(
        PAIR, steps=8, stragglers=tuple(Straggler(r, host_ns=2_000_000, steps=(1 + r, 5 + r)) for r in (0, 1))
    ),
    4: replace(
        SHARDED,
        steps=8,
        stragglers=tuple(Straggler(r, host_ns=2_000_000, steps=(1 + r, 5 + r)) for r in range(4)),
    ),
}


@pytest.mark.parametrize("ranks", BY_TURNS)
def test_pauses_by_turns_are_of_all_ranks(tmp_path: Path, ranks: int) -> None:
    """Each rank pauses in two of eight steps for 2 ms, and each pause costs all of it."""
    found = only(diagnosed(BY_TURNS[ranks], tmp_path))
    assert found.name == "host_pauses"
    assert found.title.startswith("Each rank's host pauses in other steps, for up to 2.0 ms")
    assert found.gain_s == pytest.approx(ranks * 2 / 8 * 0.002, rel=0.01)
    assert found.steps == sorted([*range(1, 1 + ranks), *range(5, 5 + ranks)])
    assert found.ranks == []


@pytest.mark.parametrize("steps", [(2, 5, 8), ()], ids=["some steps", "all steps"])
def test_one_of_two_ranks_that_pauses_alone_is_late(tmp_path: Path, steps: tuple[int, ...]) -> None:
    late = Straggler(1, host_ns=2_000_000, steps=steps)
    found = only(diagnosed(replace(PAIR, steps=8, stragglers=(late,)), tmp_path))
    assert (found.name, found.ranks) == ("late_ranks", [1])
    assert found.gain_s == pytest.approx(len(steps or range(8)) / 8 * 0.002, abs=1e-9)
