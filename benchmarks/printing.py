"""Format the figures as aligned text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from inputs import Input
    from measuring import Figures

OURS = "ccl-bench"
_HEADINGS = ("", "wall s", "CPU s", "MB/s", "wall, x ours", "CPU, x ours", "peak MB", "idle MB")
MEGA = 1e6


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as lines: the first column to the left, the others to the right."""
    lines = [list(row) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _row(name: str, measured: Input, figures: Figures, ours: Figures) -> list[str]:
    return [
        name,
        f"{figures.wall_s:.3f}",
        f"{figures.cpu_s:.3f}",
        f"{measured.size / MEGA / figures.wall_s:.0f}",
        f"{figures.wall_s / ours.wall_s:.2f}",
        f"{figures.cpu_s / ours.cpu_s:.2f}",
        f"{figures.peak_bytes / MEGA:.0f}",
        f"{figures.idle_bytes / MEGA:.0f}",
    ]


def _grid(title: str, measured: Input, figures: dict[str, Figures], reference: str) -> str:
    """Return the figures as a table of those that succeeded and a line for each that failed."""
    failed = [f"{name} failed: {result.error}" for name, result in figures.items() if result.error]
    if figures[reference].error:
        return "\n".join([title, *failed])
    whole = {name: result for name, result in figures.items() if not result.error}
    rows = [_row(name, measured, result, figures[reference]) for name, result in whole.items()]
    return "\n".join([title, aligned([_HEADINGS, *rows]), *failed])


def table(measured: Input, figures: dict[str, Figures], *, reference: str = OURS, what: str = "") -> str:
    """Return the figures on one input; ratios are to the contestant `reference`."""
    count = f"{len(measured.files)} file" + "s" * (len(measured.files) > 1)
    kind = " of JSON" if ".json" in measured.files[0].name else ""
    title = f"{measured.name}: {count}, {measured.size / MEGA:.1f} MB{kind}{what}"
    return _grid(title, measured, figures, reference)
