"""Layout of text for a terminal or a pipe: aligned tables and pages, in colour only on a terminal.

On a terminal lines are wrapped to its width. In a pipe nothing is wrapped or coloured, so that every
row is one line for the next program.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ccl_bench.base.text import harmless, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

__all__ = [
    "Fitted",
    "Group",
    "Text",
    "aligned",
    "bullet",
    "heading",
    "indented",
    "show",
    "to_text",
]

_UNWRAPPED = 1_000_000
"""A width larger than any line."""
_LEAST_IN_A_PIPE = 1_000
"""Smallest width of a pipe, so that every layout takes its widest form."""
_LEAST_WRAPPED = 20
"""Smallest width of the cells of a narrow table."""
_WRAPPED = 30
"""Smallest width of a wide cell."""


def aligned(
    header: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Iterable[int] = (),
    wide: Iterable[int] = (),
    cut: bool = False,
) -> Aligned:
    """Return a table without lines; columns in `right` align right.

    If the terminal is too narrow, the columns in `wide` are wrapped, or the last one; `cut` truncates the
    last one. If that does not suffice, each row is a name with its cells below.
    """
    cells = [[cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row] for row in rows]
    return Aligned(header, cells, right=right, wide=wide, cut=cut)


class Aligned:
    """What `aligned` returns: no cell is lost, however narrow the terminal is."""

    def __init__(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[Text]],
        *,
        right: Iterable[int],
        wide: Iterable[int],
        cut: bool,
    ) -> None:
        self._header, self._rows, self._right, self._cut = header, rows, set(right), cut
        self._wide = set(wide) or {len(header) - 1}

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the rows out for the width that there is."""
        if self._least_width() <= options.max_width:
            yield _table(self._header, self._rows, right=self._right, wide=self._wide, cut=self._cut)
            return
        for name, *cells in self._rows:
            yield name
            titles = (f"{title.lower()}: " if title else "" for title in self._header[1:])
            fields = [
                title + cell for title, cell in zip(map(Text, titles), cells, strict=True) if cell.plain
            ]
            if fields:
                yield indented(Text("; ").join(fields))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the columns that the table takes."""
        table = _table(self._header, self._rows, right=self._right, wide=self._wide, cut=self._cut)
        return Measurement.get(console, options, table)

    def _least_width(self) -> int:
        """Return the width at which no narrow cell is cut and wide ones are wrapped by words."""
        lengths = [
            max(cell_len(line) for cell in column for line in (cell.splitlines() or [""]))
            for column in zip(self._header, *([c.plain for c in row] for row in self._rows), strict=True)
        ]
        if self._wide:
            lengths[max(self._wide)] = min(lengths[max(self._wide)], _LEAST_WRAPPED)
        return sum(lengths) + 2 * (len(lengths) - 1)


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[Text]],
    *,
    right: Iterable[int],
    wide: Iterable[int],
    cut: bool,
) -> Table:
    table = Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(header), header_style="bold"
    )
    turned, wrapped = set(right), set(wide)
    for position, title in enumerate(header):
        justify: JustifyMethod = "right" if position in turned else "left"
        table.add_column(title, justify=justify, no_wrap=position not in wrapped, overflow="fold")
    for row in rows:
        cells = [cell.copy() for cell in row]
        if cut:
            cells[-1].no_wrap, cells[-1].overflow = True, "ellipsis"
        table.add_row(*cells)
    return table


class Fitted:
    """A table if it fits, else each row as a name with its cells below."""

    def __init__(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Iterable[int] = (),
        wide: Iterable[int] = (),
    ) -> None:
        self._header, self._rows = header, [[plain(cell) for cell in row] for row in rows]
        self._right, self._wide = set(right), set(wide)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the rows out for the width that there is."""
        if self._least_width() <= options.max_width:
            yield aligned(self._header, self._rows, right=self._right, wide=self._wide)
            return
        for name, *cells in self._rows:
            yield Text(name)
            titles = [title.lower() for title in self._header]
            titled = [
                (place, f"{titles[place]}: {cell}" if titles[place] else cell)
                for place, cell in enumerate(cells, 1)
                if cell != "-"
            ]
            short = "; ".join(text for place, text in titled if place not in self._wide)
            for text in filter(None, (short, *(text for place, text in titled if place in self._wide))):
                yield indented(Text(text))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the columns that the table takes."""
        table = aligned(self._header, self._rows, right=self._right, wide=self._wide)
        return Measurement.get(console, options, table)

    def _least_width(self) -> int:
        """Return the columns that the table takes with its last wide column wrapped."""
        lengths = [max(map(cell_len, column)) for column in zip(self._header, *self._rows, strict=True)]
        widths = [
            min(each, _WRAPPED) if place == max(self._wide, default=None) else each
            for place, each in enumerate(lengths)
        ]
        return sum(widths) + 2 * (len(widths) - 1)


def heading(title: str) -> Text:
    """Return the title of a section."""
    return Text(title, "bold")


def indented(content: RenderableType, columns: int = 2) -> Padding:
    """Return `content` moved to the right."""
    return Padding(content, (0, 0, 0, columns))


def bullet(mark: Text, lines: Iterable[str | Text]) -> Table:
    """Return `lines` after a mark, with wrapped lines aligned."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for position, line in enumerate(lines):
        grid.add_row(Text() if position else mark, line if isinstance(line, Text) else Text(plain(line)))
    return grid


class HarmlessConsole(Console):
    """A console on which text only shows."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the parts of a text, in which each character that acts is `?`."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(harmless(part.text), part.style)


def to_text(*content: RenderableType, stream: TextIO | None = None, width: int | None = None) -> str:
    """Return `content` as it is to be written to `stream`, which is stdout by default."""
    target = stream or sys.stdout
    console = HarmlessConsole(file=target, highlight=False, markup=False, emoji=False, width=width)
    if not console.is_terminal and width is None:
        # Lines are padded to the width, so that a larger one than the content needs costs time.
        unbounded = console.options.update(width=_UNWRAPPED)
        widths = (Measurement.get(console, unbounded, part).maximum for part in content)
        console.width = max(widths, default=0) + _LEAST_IN_A_PIPE
    with console.capture() as capture:
        for part in content:
            console.print(part)
    lines = capture.get().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def show(*content: RenderableType, stream: TextIO | None = None) -> None:
    """Write `content` to `stream`, which is stdout by default."""
    (stream or sys.stdout).write(to_text(*content, stream=stream))
