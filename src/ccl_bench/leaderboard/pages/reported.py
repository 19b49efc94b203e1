"""The page of one row that was reported elsewhere, the page of a source, and such a row in a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ccl_bench.leaderboard.pages.render import (
    hardware_text,
    name_and_version,
    number_cell,
    parallelism_text,
    render_page,
)
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.board_numbers import board_numbers
from ccl_bench.leaderboard.store.columns import CARD_COLUMNS
from ccl_bench.report.formatting import with_unit
from ccl_bench.result import Result

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ccl_bench.card.comparison_fields import Fields
    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.reported.observations import Source
    from ccl_bench.leaderboard.store.query_result import ListedRun


@dataclass(frozen=True, slots=True)
class ReportedNumber:
    """One number on the page."""

    title: str
    text: str
    spread: str
    """Smallest and largest of repeats; empty if nobody repeated it."""
    meaning: str
    """How the source's definition differs from ours, or how the board derives it."""
    metric: str
    cell: object


def reported_page(connection: Connection, listed: ListedRun, to: Links) -> str:
    """Return the page of a row."""
    run = listed.run
    source_rows = query_result.find_source(connection, run["source"])
    lengths = [f"{run[name]:,} {words}" for name, words in _LENGTHS.items() if run[name]]
    identity = {
        "hardware": hardware_text(run),
        "framework": name_and_version(run, "framework", "framework_version"),
        "parallelism": parallelism_text(run),
        "communication": name_and_version(run, "communication_library", "communication_version"),
        "precision": run["precision"] or "",
        "work": ", ".join(lengths),
        "variant": run["variant"] or "",
        "name in the source": run["name"],
        "date": run["submitted_at"][:10],
    }
    source = source_rows[0] if source_rows else None
    return render_page(
        "reported.html",
        f"{run['model']} on {hardware_text(run) or 'unknown hardware'}",
        to,
        at="runs",
        run=run,
        listed=listed,
        source=source,
        identity=[(name, text) for name, text in identity.items() if text],
        numbers=[_number(name, listed, source) for name in sorted(listed.numbers)],
    )


_LENGTHS = {
    "batch_size": "sequences a step",
    "seq_len": "tokens a sequence",
    "input_len": "tokens in",
    "output_len": "tokens out",
    "concurrency": "requests at once",
}


def _number(metric: str, listed: ListedRun, source: Source | None) -> ReportedNumber:
    number = listed.numbers[metric]
    title, meaning = metric, ""
    if metric in board_numbers():
        definition = board_numbers()[metric]
        title, meaning = definition["title"], f"{number.measured}: {definition['formula']}"
    for name, of_source in (source.numbers if source else {}).items():
        if source and source.metric(name) == metric:
            title, meaning = of_source.title, of_source.differs
    spread = ""
    if number.repeats and number.repeats > 1 and number.low is not None and number.high is not None:
        low, high = (with_unit(value, number.unit) for value in (number.low, number.high))
        spread = f"median of {number.repeats}, {low} to {high}"
    return ReportedNumber(
        title, with_unit(number.value, number.unit), spread, meaning, metric, number_cell(metric, number)
    )


def source_page(source: Source, rows: int, to: Links) -> str:
    """Return the page of a source: what it is, its licence, and what its numbers mean."""
    return render_page("source.html", source.title, to, at="runs", source=source, rows=rows)


class ReportedSide:
    """A row as one side of a comparison: its fields and numbers."""

    def __init__(self, listed: ListedRun) -> None:
        self.id = str(listed.run["id"])
        self.fields: Fields = {
            column.field: listed.run[column.name]
            for column in CARD_COLUMNS
            if listed.run[column.name] is not None
        }
        self.results = [
            Result(name, "ok", number.unit, _direction(number.better), number.value, window=number.measured)
            for name, number in listed.numbers.items()
        ]


def _direction(text: str) -> Literal["higher", "lower", "neither"]:
    return "higher" if text == "higher" else "lower" if text == "lower" else "neither"
