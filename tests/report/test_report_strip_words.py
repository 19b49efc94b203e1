"""What a report says of the strip of a step, and in which order its ranks are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from observations import looked, missing, quantity

from ccl_bench.report.sections.strip import strip
from ccl_bench.result.drill_down import Lane, Strip, StripName, StripRank

if TYPE_CHECKING:
    from ccl_bench.report import page_model

PARTS = ("compute", "fused", "exposed_communication", "exposed_memory", "idle")


def _rank(name: str, late: float | None = None, **more: Any) -> StripRank:
    """Return a rank that computes for 1 ms, communicates for 3 ms and is idle for 5 ms."""
    parts = dict(zip(PARTS, (0.001, 0.0, 0.003, 0.0, 0.005), strict=True))
    return StripRank(name, 7, 90, [], parts, late_s=late, **more)


def _drawn(*ranks: StripRank, **more: Any) -> page_model.PageStrip:
    """Return a strip of 100 units of 2.5 ms."""
    drawn = strip(looked(strip=Strip("3", 2_500_000, 100, "one clock", [], list(ranks), **more))).strip
    assert drawn is not None
    return drawn


def test_the_rank_that_waits_least_is_named_if_ranks_differ() -> None:
    whole = "Step 3 takes 250 ms from"  # 100 * 2.5 ms
    assert _drawn(_rank("0"), _rank("1")).summary.startswith(whole)
    assert "waits" not in _drawn(_rank("0"), _rank("1", 0.0)).summary
    late = _drawn(_rank("4", 0.002), _rank("5", 0.003), _rank("6", 0.001), _rank("7", 0.0), _rank("8"))
    assert late.summary.startswith(whole)
    assert "Rank 5 waits least for others, 3 ms less" in late.summary
    assert [rank["late"] for rank in late.data["ranks"]] == ["2 ms", "3 ms", "1 ms", "", ""]  # type: ignore[index]


def test_one_rank_is_named_in_the_title() -> None:
    assert _drawn(_rank("7")).title == "Step 3 of rank 7"
    assert _drawn(_rank("7"), _rank("8")).title == "Step 3 of all ranks"
    assert strip(looked(missing("gpu_busy", "no device"))).absent == "Not measurable: no device."


@pytest.mark.parametrize(
    ("ranks", "by_lateness"),
    [
        (["0", "7", "10"], False), (["0", "10", "7"], True), (["7", "0", "10"], True),
        (["0", "7", "unknown"], False), (["unknown", "0", "7"], True), (["unknown", "unknown"], False),
    ],
)  # fmt: skip
def test_ranks_are_in_the_order_of_numbers_if_unknown_ones_come_last(
    ranks: list[str], by_lateness: bool
) -> None:
    assert _drawn(*map(_rank, ranks)).data["by_lateness"] is by_lateness


def test_what_is_drawn_has_its_units_names_and_lanes() -> None:
    lane = Lane("stream 7", "0,5,c0")
    rank = StripRank("2", 7, 90, [lane], dict.fromkeys(PARTS, 0.001), node=1)
    made = Strip(
        "3", 2_500_000, 100, "one clock", [StripName("gemm"), StripName("gather", 2_000_000)], [rank]
    )
    drawn = strip(looked(strip=made)).strip
    assert drawn is not None
    assert drawn.data == {
        "unit_ns": 2_500_000, "length": 100, "names": ["gemm", "gather, 2 MB"], "by_lateness": False,
        "ranks": [{
            "rank": "2", "node": 1, "start": 7, "length": 90, "late": "",
            "lanes": [{"name": "stream 7", "pieces": "0,5,c0"}],
        }],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pieces", "drawn", "others", "sentences"),
    [(9, 9, 0, 1), (9, 8, 0, 2), (9, 9, 1, 2), (9, 8, 2, 3)],
)
def test_pieces_that_stand_for_several_and_missing_traces_are_noted(
    pieces: int, drawn: int, others: int, sentences: int
) -> None:
    note = _drawn(_rank("0"), pieces=pieces, drawn=drawn, others=others).note
    assert note.count(".") == sentences
    assert note.endswith("One clock.")
    assert ("8 pieces for 9" in note) is (drawn == 8)
    assert ("2 traces" in note, "1 trace " in note) == (others == 2, others == 1)


def test_a_step_is_the_sum_of_its_parts() -> None:
    [row] = _drawn(_rank("0", 0.002, waited_s=0.004, node=0)).table.rows
    assert row[:2] == ("0", "0")
    assert [quantity(cell).value for cell in row[2:]] == pytest.approx(
        [0.001, 0.003, 0.0, 0.005, 0.009, 0.004, 0.002]
    )
