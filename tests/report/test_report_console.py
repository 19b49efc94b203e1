"""Tables of a terminal: which titles are shown, which column is wrapped, and how narrow ones look."""

from __future__ import annotations

import io

import pytest

from ccl_bench.report.console import Fitted, Text, aligned, bullet, indented, show, to_text

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


def test_the_last_of_several_wide_columns_decides_whether_a_table_is_too_wide() -> None:
    row = ("two words", "x" * 15, "y" * 31)
    # 9 + 15 + 20 and twice 2 between them
    table = aligned(("NAME", "A", "B"), [row], wide=(1, 2))
    assert lines(table, 48)[0].split() == ["NAME", "A", "B"]
    assert lines(table, 47)[0] == "two words"
    # 9 + 15 + 30 and twice 2
    fitted = Fitted(("NAME", "A", "B"), [row], wide=(1, 2))
    assert lines(fitted, 58)[0].split() == ["NAME", "A", "B"]
    assert lines(fitted, 57)[:3] == ["two words", f"  a: {row[1]}", f"  b: {row[2]}"]


def test_a_fitted_table_without_a_wide_column_needs_all_of_its_columns() -> None:
    table = Fitted(("NAME", "A"), [("two words", "x" * 40)])
    # 9 + 40 and 2 between
    assert lines(table, 51)[0].split() == ["NAME", "A"]
    assert lines(table, 50) == ["two words", "  a: " + "x" * 40]


def test_the_last_cell_may_be_cut_and_the_others_never_are() -> None:
    row = ("two words", "x" * 25, "some words in a name that is long")
    # 9 + 25 and twice 2 leave 22 columns of 60
    assert lines(aligned(("NAME", "B", "FILE"), [row], cut=True), 60)[1:] == [
        "two words  " + "x" * 25 + "  some words in a name …",
    ]
    assert len(lines(aligned(("NAME", "B", "FILE"), [row]), 60)) == 3


class _Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_text_is_written_as_it_is_even_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert to_text("[bold]12[/bold] :smile: True", stream=_Terminal()) == "[bold]12[/bold] :smile: True\n"


def test_what_is_shown_goes_to_its_stream_or_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    show("first", "x" * 3000, "last", stream=stream)
    assert stream.getvalue() == "first\n" + "x" * 3000 + "\nlast\n"
    assert capsys.readouterr().out == ""
    show()
    show("one")
    assert capsys.readouterr().out == "one\n"


def test_the_lines_after_a_mark_are_below_the_first() -> None:
    assert lines(bullet(Text("7"), ["one", Text("two"), "three"]), 80) == ["7 one", "  two", "  three"]
    assert lines(indented(Text("one")), 80) == ["  one"]
    assert lines(indented(Text("one"), 5), 80) == ["     one"]
