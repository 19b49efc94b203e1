"""Lay out what was measured as aligned text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from inputs import Input
    from measuring import Figures

OURS = "ccl-bench"
_HEADINGS = ("", "wall s", "CPU s", "MB/s", "wall, x ours", "CPU, x ours", "peak MB", "idle MB")
_TARGETS = (
    ("HTA's load time over ours", "HTA", OURS, 25.0),
    ("our rate over that of a bare simdjson parse", "simdjson", OURS, 0.3),
)
_SCALING_TARGET = 1.7
_UNDISTURBED = 1.15
_MEGA = 1e6


def _aligned(rows: Iterable[Sequence[str]]) -> str:
    lines = [list(row) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _row(name: str, measured: Input, its: Figures, ours: Figures) -> list[str]:
    return [
        name,
        f"{its.wall_s:.3f}",
        f"{its.cpu_s:.3f}",
        f"{measured.size / _MEGA / its.wall_s:.0f}",
        f"{its.wall_s / ours.wall_s:.2f}",
        f"{its.cpu_s / ours.cpu_s:.2f}",
        f"{its.peak_bytes / _MEGA:.0f}",
        f"{its.idle_bytes / _MEGA:.0f}",
    ]


def _grid(title: str, measured: Input, figures: dict[str, Figures], reference: str) -> str:
    """Return the figures as a table of those that succeeded and a line for each that failed."""
    failed = [f"{name} failed: {its.error}" for name, its in figures.items() if its.error]
    if figures[reference].error:
        return "\n".join([title, *failed])
    whole = {name: its for name, its in figures.items() if not its.error}
    rows = [_row(name, measured, its, figures[reference]) for name, its in whole.items()]
    return "\n".join([title, _aligned([_HEADINGS, *rows]), *failed])


def table(measured: Input, figures: dict[str, Figures]) -> str:
    """Return what was measured on one input."""
    count = f"{len(measured.files)} file" + "s" * (len(measured.files) > 1)
    return _grid(f"{measured.name}: {count}, {measured.size / _MEGA:.1f} MB of JSON", measured, figures, OURS)


def scaling_table(measured: Input, figures: dict[str, Figures]) -> str:
    """Return what was measured of many ranks; ratios are to two cores."""
    title = f"{measured.name}, {measured.size / _MEGA:.0f} MB of JSON, by ccl-bench"
    return _grid(title, measured, figures, "2 cores")


def _verdict(what: str, ratio: float, target: float) -> str:
    return f"{what}: {ratio:.2f}, target {target:g}: {'reached' if ratio >= target else 'MISSED'}"


def _is_disturbed(its: Figures) -> bool:
    """Whether a contestant that never waits had to wait for its core, so that its wall time means little."""
    return its.wall_s > _UNDISTURBED * its.cpu_s


def verdicts(loads: dict[str, Figures], scaling: dict[str, Figures]) -> str:
    """Return the targets beside what was measured: CPU time on one core, wall time on two."""
    lines = [
        _verdict(what, loads[upper].cpu_s / loads[lower].cpu_s, target)
        for what, upper, lower, target in _TARGETS
        if not loads[upper].error and not loads[lower].error
    ]
    one, two = scaling["1 core"], scaling["2 cores"]
    if not one.error and not two.error:
        lines.append(_verdict("one core over two, several ranks", one.wall_s / two.wall_s, _SCALING_TARGET))
    if any(_is_disturbed(its) for its in (*loads.values(), one) if not its.error):
        lines.append(
            "Other programs kept the cores busy: wall times, and what follows from them, mean little."
        )
    return "\n".join(lines)
