"""The order in which derived tables are computed, and what cannot be: tables of no package, and circles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccl_bench.analysis import derived
from ccl_bench.analysis.derived import circles, computation_order, missing_tables, raw_needs, tables_behind

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDS = {
    "spans": ("cpu_ops",),
    "shares": ("spans", "steps_of", "facts"),
    "steps_of": ("spans", "kernels"),
    "left": ("right", "spans"),
    "right": ("left",),
    "one": ("two",),
    "two": ("three",),
    "three": ("one",),
    "on_circle": ("shares", "left"),
    "of_nobody": ("spans", "nothing"),
}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cached = (derived._without_circles, derived._computation_order)
    for each in cached:
        each.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(derived, "_needs", lambda: NEEDS)
        yield
    for each in cached:
        each.cache_clear()


def test_a_table_comes_after_those_it_needs_and_once() -> None:
    assert computation_order(["shares", "spans"]) == ["spans", "steps_of", "shares"]
    assert computation_order(["cpu_ops"]) == []
    assert raw_needs(["shares", "copies"]) == {"cpu_ops", "kernels"}
    assert tables_behind(["steps_of"]) == {"steps_of", "spans", "cpu_ops", "kernels"}
    assert tables_behind(["steps_of"], but={"spans"}) == {"steps_of", "kernels"}


def test_circles_and_what_rests_on_them_are_left_out() -> None:
    assert [set(each) for each in circles(["on_circle"])] == [{"left", "right"}]
    assert sorted(map(sorted, circles(NEEDS))) == [["left", "right"], ["one", "three", "two"]]
    assert circles(["shares"]) == []
    assert circles(["on_circle"], available={"left"}) == []
    assert computation_order(["on_circle", "spans"]) == ["spans", "steps_of", "shares"]


def test_what_is_in_a_circle_or_of_no_package_is_missing() -> None:
    assert missing_tables(["shares", "cpu_ops"], ()) == ["facts"]
    assert missing_tables(["on_circle"], ("facts",)) == ["left", "right"]
    assert missing_tables(["of_nobody", "two"], ()) == ["nothing", "one", "three", "two"]
    assert missing_tables(["of_nobody"], ("nothing",)) == []
