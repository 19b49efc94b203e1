"""Text for a terminal or a pipe: tables and pages, aligned, coloured quietly and only on a terminal.

On a terminal lines are wrapped to its width. In a pipe nothing is wrapped or coloured, so that every
row is one line for the next program.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ccl_bench.report.formatting import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

__all__ = ["Described", "Group", "Text", "aligned", "bullet", "heading", "indented", "show", "to_text"]

_UNWRAPPED = 1_000_000
_ROOM_FOR_TWO = 110
"""Columns from which on names and descriptions stand side by side."""


def aligned(
    header: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Iterable[int] = (),
    cut: bool = False,
) -> Table:
    """Return a table without lines; columns in `right` align right.

    Where the terminal is too narrow the last column is wrapped, or with `cut` cut short.
    """
    table = Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(header), header_style="bold"
    )
    turned, last = set(right), len(header) - 1
    for position, title in enumerate(header):
        justify: JustifyMethod = "right" if position in turned else "left"
        table.add_column(title, justify=justify, no_wrap=position < last, overflow="fold")
    for row in rows:
        cells = [cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row]
        if cut:
            cells[-1].no_wrap, cells[-1].overflow = True, "ellipsis"
        table.add_row(*cells)
    return table


class Described:
    """Names with what is said of each: in two columns where there is room, else below each other."""

    def __init__(self, entries: Iterable[tuple[str, Sequence[Text]]]) -> None:
        self.entries = list(entries)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the entries out for the width that there is."""
        if options.max_width >= _ROOM_FOR_TWO:
            rows = [(name, Text("\n").join(lines)) for name, lines in self.entries]
            yield aligned(("", ""), rows)
            return
        for name, lines in self.entries:
            yield Text(plain(name))
            for line in lines:
                yield indented(line)


def heading(title: str) -> Text:
    """Return the title of a section."""
    return Text(title, "bold")


def indented(content: RenderableType, columns: int = 2) -> Padding:
    """Return `content` moved to the right."""
    return Padding(content, (0, 0, 0, columns))


def bullet(mark: Text, lines: Iterable[str | Text]) -> Table:
    """Return `lines` beside a mark, wrapped under themselves."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for position, line in enumerate(lines):
        grid.add_row(Text() if position else mark, line if isinstance(line, Text) else Text(plain(line)))
    return grid


def to_text(*content: RenderableType, stream: TextIO | None = None, width: int | None = None) -> str:
    """Return `content` as it is to be written to `stream`, which is stdout unless given."""
    target = stream or sys.stdout
    console = Console(file=target, highlight=False, markup=False, emoji=False, width=width)
    if not console.is_terminal and width is None:
        console = Console(file=target, highlight=False, markup=False, emoji=False, width=_UNWRAPPED)
    with console.capture() as capture:
        for part in content:
            console.print(part)
    lines = capture.get().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def show(*content: RenderableType, stream: TextIO | None = None) -> None:
    """Write `content` to `stream`, which is stdout unless given."""
    (stream or sys.stdout).write(to_text(*content, stream=stream))
