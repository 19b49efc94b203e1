"""Jobs of four gloo processes that stop in known ways: the dumps show who is missing, or what differs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import gloo_hangs
import pytest
from recordings import recording

import ccl_bench as ccl

if TYPE_CHECKING:
    from ccl_bench.result.hang import Divergence, Hang

PROGRAM = Path(gloo_hangs.__file__).read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="session")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory, "hangs")


@cache
def found_in(run: Path) -> Hang:
    return ccl.open(run, use_cache=False).hang()


def shown(place: Divergence) -> tuple[object, ...]:
    ranks = [call.rank for call in place.waiting], [each.rank for each in place.missing]
    return place.kind, place.description, place.sequence, place.operation, *ranks


NEXT = gloo_hangs.TOGETHER + 1


@pytest.mark.parametrize(
    ("scenario", "cause", "culprits"),
    [
        ("missing", ("missing", "default_pg", NEXT, "all_reduce", [0, 1, 3], [2]), [2]),
        ("order", ("missing", "first", 1, "all_reduce", [0, 2, 3], [1]), [1]),
        ("collective", ("mismatch", "default_pg", NEXT, "all_reduce", [0, 1, 2], []), [3]),
        ("size", ("mismatch", "default_pg", NEXT, "all_gather", [0, 1, 2], []), [3]),
        ("no_dump", ("no dump", "default_pg", NEXT, "all_reduce", [0, 2, 3], []), [1]),
        (
            "overwritten",
            ("missing", "default_pg", NEXT + 2 * gloo_hangs.SMALL_BUFFER, "all_reduce", [0, 1, 3], [2]),
            [2],
        ),
        ("one_name", ("missing", "pair", 2, "all_reduce", [2], [3]), [3]),
        ("message", ("missing", "default_pg", NEXT, "all_reduce", [0, 2, 3], [1]), [1]),
        ("subgroup", ("missing", "odd", 1, "all_reduce", [1], [0, 2, 3]), [3]),
    ],
)
def test_the_cause_of_a_recorded_hang_is_named(
    hangs: Path, scenario: str, cause: tuple[object, ...], culprits: list[int]
) -> None:
    found = found_in(hangs / scenario)
    assert shown(found.divergences[0]) == cause
    assert found.divergences[0].follows_from is None
    assert found.culprits == culprits
    assert found.findings == []


@pytest.mark.parametrize("scenario", ["complete", "late"])
def test_a_job_that_made_every_call_hangs_nowhere(hangs: Path, scenario: str) -> None:
    found = found_in(hangs / scenario)
    assert (found.ranks, found.without_dump, found.divergences) == ([0, 1, 2, 3], [], [])


def test_the_group_that_waits_for_a_waiting_rank_follows(hangs: Path) -> None:
    found = found_in(hangs / "subgroup")
    assert [(each.description, each.follows_from) for each in found.divergences] == [
        ("odd", None),
        ("default_pg", 0),
    ]


def test_ranks_that_wait_for_each_other_are_a_circle(hangs: Path) -> None:
    places = found_in(hangs / "order").divergences
    assert [(each.is_mutual, each.follows_from) for each in places] == [(True, None), (True, 0)]


def test_the_ring_buffer_held_as_many_calls_as_it_can(hangs: Path) -> None:
    assert found_in(hangs / "overwritten").calls == 4 * gloo_hangs.SMALL_BUFFER


def test_a_rank_without_a_dump_is_listed(hangs: Path) -> None:
    assert found_in(hangs / "no_dump").without_dump == [1]


def test_frames_are_the_programs_own(hangs: Path) -> None:
    """The innermost frames are torch's: those of waiters and of the last call of who is missing are not."""
    place = found_in(hangs / "missing").divergences[0]
    last = place.missing[0].last
    frames = [call.frame for call in (*place.waiting, last) if call]
    assert all(frame and Path(frame.file).name == "gloo_hangs.py" for frame in frames)
    lines = {PROGRAM[frame.line - 1].strip() for frame in frames if frame}
    assert lines == {
        "dist.all_reduce(torch.zeros(ELEMENTS), group=group, async_op=True)",
        "dist.all_reduce(torch.zeros(ELEMENTS))",
    }
    assert [call.stack[0].function for call in place.waiting] == ["all_reduce"] * 3


def test_torchs_own_analyser_has_no_answer(hangs: Path) -> None:
    """It needs `pg_config`, which gloo leaves empty."""
    assert (hangs / "torch.txt").read_text() == "KeyError"
