"""Sizes of blocks and ranges of addresses, small enough to follow by hand."""

from __future__ import annotations

import pytest

from ccl_bench.analysis.memory.allocator import Range, Ranges, Rounding, rounding

MIB = 1 << 20


def ranges(*spans: Range) -> Ranges:
    return Ranges(spans)


def test_a_range_in_place_of_others_cuts_them() -> None:
    found = ranges((0, 10, False), (20, 30, False), (30, 40, False))
    found.add(5, 25)
    assert list(found) == [(0, 5, False), (5, 25, False), (25, 30, False), (30, 40, False)]
    found.remove(5, 25)
    assert list(found) == [(0, 5, False), (25, 30, False), (30, 40, False)]
    found.remove(27, 28)
    assert list(found) == [(0, 5, False), (25, 27, False), (28, 30, False), (30, 40, False)]
    found.remove(0, 5)
    found.remove(30, 35)
    assert list(found) == [(25, 27, False), (28, 30, False), (35, 40, False)]
    found.add(50, 50)
    assert len(list(found)) == 3


def test_addresses_from_before_the_first_range_cut_what_they_reach() -> None:
    found = ranges((10, 20, False), (20, 30, False), (40, 50, False))
    found.remove(0, 25)
    assert list(found) == [(25, 30, False), (40, 50, False)]
    found.remove(0, 5)
    assert list(found) == [(25, 30, False), (40, 50, False)]


def test_an_address_is_in_the_range_from_its_start_until_before_its_end() -> None:
    found = ranges((10, 20, False), (20, 30, True))
    places = {address: found.at(address) for address in (9, 10, 19, 20, 29, 30)}
    first, second = (10, 20, False), (20, 30, True)
    assert places == {9: None, 10: first, 19: first, 20: second, 29: second, 30: None}


@pytest.mark.parametrize(
    ("before", "after", "joined"),
    [
        (True, True, [(0, 30, True)]),
        (True, False, [(0, 20, True), (20, 30, False)]),
        (False, True, [(0, 10, False), (10, 30, True)]),
        (False, False, [(0, 10, False), (10, 20, True), (20, 30, False)]),
    ],
)
def test_expandable_ranges_join_their_expandable_neighbours(
    before: bool, after: bool, joined: list[Range]
) -> None:
    found = ranges((0, 10, before), (20, 30, after))
    found.add(10, 20, is_expandable=True)
    assert list(found) == joined
    apart = ranges((0, 9, True), (21, 30, True))
    apart.add(10, 20, is_expandable=True)
    assert list(apart) == [(0, 9, True), (10, 20, True), (21, 30, True)]


@pytest.mark.parametrize(
    ("asked", "size"),
    [(0, 512), (1, 512), (511, 512), (512, 512), (513, 1024), (1024, 1024), (1025, 1536), (3 * MIB, 3 * MIB)],
)
def test_sizes_are_multiples_of_512_bytes(asked: int, size: int) -> None:
    assert Rounding().rounded(asked) == size


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        # 2 MiB up to 4 MiB in four parts of 512 KiB
        (2 * MIB, 2 * MIB), (2 * MIB + 1, 2 * MIB + MIB // 2), (3 * MIB, 3 * MIB),
        (3 * MIB + 1, 3 * MIB + MIB // 2),
        # from 4 MiB on other divisions hold
        (4 * MIB + 1, 4 * MIB + 512),
    ],
)  # fmt: skip
def test_sizes_may_be_parts_of_the_next_power_of_two(asked: int, size: int) -> None:
    assert Rounding({2: 4}).rounded(asked) == size
    assert Rounding({2: 1}).rounded(asked) == -(-asked // 512) * 512


def test_divisions_hold_for_sizes_above_512_bytes_each_and_the_largest_interval_for_all_above() -> None:
    small = Rounding({1: 4})
    assert (small.rounded(4 * 512), small.rounded(4 * 512 + 1)) == (2048, 2560)
    assert small.rounded(600) == 1024
    assert small.rounded(2 * MIB - 1) == 2 * MIB
    top = 1 << 35
    assert Rounding({1 << 15: 2}).rounded(4 * top + 1) == 6 * top


@pytest.mark.parametrize(
    ("rounded", "free", "size"),
    [
        (512, 1024, 512), (512, 1023, 1023), (MIB, MIB + 512, MIB), (MIB, MIB + 511, MIB + 511),
        (2 * MIB, 3 * MIB, 3 * MIB), (2 * MIB, 3 * MIB + 1, 2 * MIB),
        (8 * MIB, 20 * MIB, 20 * MIB), (8 * MIB - 512, 20 * MIB, 8 * MIB - 512),
    ],
)  # fmt: skip
def test_a_free_block_is_split_if_enough_is_left(rounded: int, free: int, size: int) -> None:
    assert Rounding(max_split=8 * MIB).block(rounded, free) == size


def test_settings_of_the_allocator_give_the_rules() -> None:
    divisions = {"roundup_power2_divisions.64": 4, "roundup_power2_divisions.x": 8, "other.1": 2}
    assert rounding(divisions) == Rounding({64: 4}, None)
    assert rounding({"max_split_size": 1}) == Rounding({}, 1)
    assert rounding({"max_split_size": 0}) == rounding({"max_split_size": -1}) == rounding({})
