"""Measure reports and diagnoses of large runs: ranks whose tables are kept, and an export with nothing kept.

python benchmarks/reports.py RANKS EXPORT [--rounds N]: RANKS holds the traces of several ranks, as `load.py`
makes them; they are made different in a folder beside it, because equal ones count as copies of one rank.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import commands
from targets import Target, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from commands import Timed

KEPT_REPORT, KEPT_DIAGNOSIS, EXPORT = "report, tables kept", "diagnose, tables kept", "report of an export"

_TIMES = re.compile(rb'"(ts|dur)": ([\d.]+)')
_STRETCH = 1e-5
"""By how much the clock of each rank is slower than that of the one before."""

_MIB = 1 << 20


def different_ranks(files: Sequence[Path], folder: Path) -> Path:
    """Write the traces of equal ranks as traces of ranks whose clocks differ, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, file in enumerate(files):
        target = folder / file.name
        if target.exists():
            continue
        text, ranks = file.read_bytes(), ", ".join(map(str, range(len(files)))).encode()
        text = re.sub(rb'("Process Group Ranks": "\[|"ranks": \[)0, 1\]', rb"\g<1>%b]" % ranks, text)
        text = re.sub(rb'("(?:Group size|world_size|pg_size)": )2\b', rb"\g<1>%d" % len(files), text)
        begin = min(float(ts) for kind, ts in _TIMES.findall(text) if kind == b"ts" and float(ts) > 0)
        target.write_bytes(_TIMES.sub(_later(begin, 1 + rank * _STRETCH), text))
    return folder


def _later(begin: float, factor: float) -> Callable[[re.Match[bytes]], bytes]:
    def moved(match: re.Match[bytes]) -> bytes:
        time, origin = float(match[2]), begin if match[1] == b"ts" else 0.0
        return b'"%b": %.3f' % (match[1], origin + (time - origin) * factor)

    return moved


def measured(ranks: Path, export: Path, rounds: int) -> dict[str, Timed]:
    """Return the cost of a report and a diagnosis with tables kept, and of a report of an export without.

    The export is read in one process: the time of workers would not count.
    """
    costs = {name: commands.Timed(name) for name in (KEPT_REPORT, KEPT_DIAGNOSIS, EXPORT)}
    program = str(commands.PROGRAMS / "ccl-bench")
    with tempfile.TemporaryDirectory() as folder:
        page, kept = ["--force", "--output", str(Path(folder, "report.html"))], Path(folder, "kept")
        for name, words in (
            (KEPT_REPORT, [program, "report", str(ranks), *page]),
            (KEPT_DIAGNOSIS, [program, "diagnose", str(ranks)]),
        ):
            commands.measure(commands.Timed(""), words, kept)
            for _ in range(rounds):
                commands.measure(costs[name], words, kept)
        for number in range(rounds):
            commands.measure(
                costs[EXPORT],
                [program, "report", str(export), "--jobs", "1", *page],
                Path(folder, str(number)),
            )
    return costs


def of_reports(costs: Mapping[str, Timed]) -> Iterator[Target]:
    """Yield the targets for the time of each command, and for the memory of the report of an export."""
    for what, name, aim in (
        ("HTML report of 8 ranks of 59 MB, tables kept", KEPT_REPORT, 4),
        ("`diagnose` of 8 ranks of 59 MB, tables kept", KEPT_DIAGNOSIS, 2),
        ("HTML report of an export of 270 MB, nothing kept", EXPORT, 8),
    ):
        timed, peak = costs[name], costs[name].peak_bytes / _MIB
        seconds, beside = timed.cpu_s, f"{peak:,.0f} MiB"
        yield Target(what, f"<= {aim} s", f"{seconds:.1f} s", seconds <= aim, f"{timed.wall_s:.1f} s", beside)
    peak = costs[EXPORT].peak_bytes / _MIB
    yield Target("memory for the report of this export", "<= 500 MiB", f"{peak:,.0f} MiB", peak <= 500)


def main() -> None:
    """Measure what the command line names, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ranks", type=Path)
    parser.add_argument("export", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    folder = wanted.ranks.with_name(f"{wanted.ranks.name}-different")
    ranks = different_ranks(sorted(wanted.ranks.glob("*.json")), folder)
    costs = measured(ranks, wanted.export, wanted.rounds)
    print(commands.timed_table("reports and diagnoses, whole processes", costs))
    print(table(of_reports(costs)))


if __name__ == "__main__":
    main()
