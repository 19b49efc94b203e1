"""Measure whether time grows linearly with the number of ranks, and whether memory stays constant."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matching
from many_ranks import cost_of, written
from printing import aligned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from many_ranks import Cost

REPOSITORY = Path(__file__).resolve().parent.parent
_MEGA = 1e6
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Row:
    """The cost of all metrics of a run with this many ranks."""

    ranks: int
    megabytes: float
    wall_s: float
    cpu_s: float
    peak_mb: float
    answers: str
    """How many of the known answers came out."""


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="64,256,1024", help="numbers of ranks, multiples of 8")
    parser.add_argument("--megabytes", type=float, default=10.0, help="size of each rank's trace")
    parser.add_argument("--dask", type=int, metavar="N", help="ask N worker processes of a Dask cluster too")
    parser.add_argument(
        "--work", type=Path, default=REPOSITORY / "build" / "bench", help="where runs are made"
    )
    parser.add_argument("--no-matching", action="store_true", help="leave the matching of calls out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE too")
    options = parser.parse_args(arguments)
    options.ranks = sorted(map(int, options.ranks.split(",")))
    return options


def _command(place: Path, *more: str) -> list[str]:
    program = str(Path(sys.executable).parent / "ccl-metrics")
    return [program, "--trace", str(place), "--all", "--format", "json", "--no-cache", *more]


def _compared(answers: dict[str, float], output: bytes) -> str:
    values = {result["metric"]: result["value"] for result in json.loads(output)}
    expected_values = {name: value for name, value in answers.items() if name in values}
    right = [
        n
        for n, v in expected_values.items()
        if values[n] is not None and math.isclose(values[n], v, rel_tol=_CLOSE)
    ]
    return f"{len(right)} of {len(expected_values)}"


def _row(ranks: int, place: Path, answers: dict[str, float], cost: Cost) -> Row:
    size = sum(file.stat().st_size for file in place.glob("rank*"))
    right = _compared(answers, cost.output)
    return Row(ranks, size / _MEGA, cost.wall_s, cost.cpu_s, cost.peak_bytes / _MEGA, right)


@contextlib.contextmanager
def _dask(workers: int) -> Iterator[str]:
    from distributed import LocalCluster

    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster:  # type: ignore[no-untyped-call]
        yield cluster.scheduler_address.replace("tcp:", "dask:")


def _table(title: str, rows: Sequence[Row]) -> str:
    head = (
        "ranks",
        "MB",
        "wall s",
        "CPU s",
        "CPU ms a rank",
        "x first",
        "peak MB",
        "x first",
        "answers right",
    )
    first = rows[0]
    lines = [
        (
            f"{row.ranks:,}",
            f"{row.megabytes:,.0f}",
            f"{row.wall_s:.1f}",
            f"{row.cpu_s:.1f}",
            f"{1000 * row.cpu_s / row.ranks:.0f}",
            f"{row.cpu_s / row.ranks / (first.cpu_s / first.ranks):.2f}",
            f"{row.peak_mb:.0f}",
            f"{row.peak_mb / first.peak_mb:.2f}",
            row.answers,
        )
        for row in rows
    ]
    return f"{title}\n{aligned([head, *lines])}"


def _files(options: argparse.Namespace) -> list[Row]:
    """Measure runs in files, and print their cost."""
    rows = []
    with _dask(options.dask) if options.dask else contextlib.nullcontext() as address:
        for ranks in options.ranks:
            place, answers = written(options.work, ranks, int(options.megabytes * _MEGA))
            cost = cost_of(_command(place))
            rows.append(_row(ranks, place, answers, cost))
            print(f"{ranks:,} ranks: {cost.wall_s:.0f} s", flush=True)
            if address:
                dask_cost = cost_of(_command(place, "--engine", address))
                verdict = "the same bytes" if dask_cost.output == cost.output else "ANOTHER ANSWER"
                print(f"  on {options.dask} workers of Dask: {dask_cost.wall_s:.0f} s, {verdict}", flush=True)
    print(_table(f"every metric of ranks with {options.megabytes:g} MB each, `auto`", rows))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    options = _options(arguments)
    figures: dict[str, object] = {"files": [asdict(row) for row in _files(options)]}
    if not options.no_matching:
        timed = matching.timed()
        print(matching.table(timed))
        figures["matching"] = [asdict(one) for one in timed]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
