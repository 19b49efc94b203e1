"""Tables of a terminal: which titles are shown, which column is wrapped, and how narrow ones look."""

from __future__ import annotations

import pytest

from ccl_bench.report.console import Described, Fitted, Text, aligned, to_text

WORDS = "seven words of text in one cell"


def lines(content: object, width: int) -> list[str]:
    return to_text(content, width=width).splitlines()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "shown"),
    [(("", ""), ["a  b"]), (("", "ONE"), ["   ONE", "a  b"]), (("ONE", "TWO"), ["ONE  TWO", "a    b"])],
)
def test_titles_are_shown_if_there_is_any(header: tuple[str, str], shown: list[str]) -> None:
    assert lines(aligned(header, [("a", "b")]), 80) == shown


def test_the_last_column_is_wrapped_unless_others_are_named() -> None:
    row = ("two words", WORDS, "so many words that they are wrapped")
    last = lines(aligned(("", "", ""), [row]), 64)
    assert [line.startswith(f"two words  {WORDS}  so many") for line in last] == [True, False]
    middle = lines(aligned(("", "", ""), [row], wide=(1,)), 70)
    assert [line.endswith("  so many words that they are wrapped") for line in middle] == [True, False]


def test_numbers_align_right() -> None:
    assert lines(aligned(("N", "VALUE"), [("a", "1"), ("b", "100")], right=(1,)), 80) == [
        "N  VALUE",
        "a      1",
        "b    100",
    ]


def test_a_row_is_a_name_with_its_cells_below_where_a_table_is_too_wide() -> None:
    # 9 + 31 + 2 between them is 42; the wrapped column needs 20
    table = aligned(("NAME", "CELL"), [("two words", WORDS)])
    assert lines(table, 31)[0].split() == ["NAME", "CELL"]
    assert lines(table, 30)[:2] == ["two words", "  cell: seven words of text in"]


def test_a_fitted_table_keeps_30_columns_of_what_it_wraps() -> None:
    table = Fitted(("NAME", "N", "CELL"), [("two words", "7", WORDS), ("none", "-", "-")], wide=(2,))
    # 9 + 1 + 30 and twice 2 between
    assert lines(table, 44)[0].split() == ["NAME", "N", "CELL"]
    assert lines(table, 43) == ["two words", "  n: 7", f"  cell: {WORDS}", "none"]


@pytest.mark.parametrize(("width", "count"), [(110, 1), (109, 2)])
def test_descriptions_are_beside_names_from_110_columns_on(width: int, count: int) -> None:
    assert len(lines(Described([("name", [Text("what it is")])]), width)) == count
