"""The answer above the table: a sentence with links, a picture, and libraries in pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.base.text import counted
from ccl_bench.leaderboard.bundle.format import State
from ccl_bench.leaderboard.pages.render import (
    BADGES,
    hardware_text,
    name_and_version,
    parallelism_text,
    render_page,
)
from ccl_bench.leaderboard.store.answers import BoardAnswer, answer, describe
from ccl_bench.leaderboard.store.board_numbers import DERIVED
from ccl_bench.leaderboard.store.reported_rows import STATE
from ccl_bench.report.formatting import amount, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.store.answers import Candidate, PairedLibraries
    from ccl_bench.leaderboard.store.query import RunQuery
    from ccl_bench.leaderboard.store.query_result import Matching

Words = list[tuple[str, str]]
"""Text with the address that it links to, empty without one."""

FLOORS = (20, 50, 100, 200)
"""Tokens per second per user that the page offers: slow and fast reading, an agent, and faster ones."""
_SYSTEMS = 8
"""Systems with a shape and colour of their own; the style sheet has as many."""
_OTHER_POINTS = 150
"""Points off the fronts that are drawn: more would hide each other."""
_BARS = 12
_NAMED = 4
"""Rows that the sentence names."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One point of the picture."""

    x: float
    y: float
    run: str
    label: str
    colour: int
    is_hollow: bool = False
    """Whether it lies between measured points."""
    is_reported: bool = False


@dataclass(frozen=True, slots=True)
class Front:
    """The line of a system, with its name at the right end: colours alone do not distinguish systems."""

    colour: int
    path: str
    name: str
    x: float
    y: float
    anchor: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Throughput against interactivity, both axes logarithmic."""

    width: int
    height: int
    dots: list[Dot]
    lines: list[Front]
    keys: list[tuple[int, str]]
    across: list[tuple[float, str]]
    up: list[tuple[float, str]]
    floor: float | None
    """Position of the asked interactivity."""
    labels: tuple[str, str]
    summary: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart."""

    name: str
    run: str
    text: str
    share: float
    """Length, percent of the longest."""
    note: str
    is_reported: bool


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """An answer as the page shows it."""

    answer: BoardAnswer
    sentence: Words
    picture: Picture | None
    bars: list[Bar]
    pairs: list[Words]
    floors: list[tuple[str, str, bool]]
    """Least tokens per second per user: text, address, and whether it is the asked one."""
    by_floor: list[tuple[str, Words]]
    """Least tokens per second per user, and the best row that reaches it."""
    goals: list[tuple[str, str, bool]]
    others: list[tuple[str, str, int]]
    """Further questions with their address and number of rows."""


def shown_answer(
    connection: Connection, query: RunQuery, to: Links, matching: Matching | None = None
) -> ShownAnswer | None:
    """Return the answer to a query; None if there is nothing to answer with.

    `matching` are the counts of the query, if the caller has them.
    """
    result = answer(connection, query, matching)
    if result is None or not result.points:
        return None
    question = result.query
    is_serving = bool(result.fronts)
    return ShownAnswer(
        result,
        list(_sentence(result, to)),
        _picture(connection, result) if is_serving else None,
        [] if is_serving else _bars(connection, result),
        [list(_pair(pair, result, to)) for pair in result.pairs],
        [
            (
                f"{floor} tokens/s",
                to.table(query, interactivity=float(floor), page=1),
                question.interactivity == floor,
            )
            for floor in FLOORS
        ]
        if is_serving
        else [],
        list(_by_floor(connection, result, to)) if is_serving else [],
        [
            (goal.title, to.table(query, matters=goal.metric, page=1), goal == result.goal)
            for goal in result.goals
        ],
        [
            (_question_text(changes), to.question(question, **changes), rows)
            for changes, rows in result.others
        ],
    )


def question_page(connection: Connection, query: RunQuery, to: Links) -> str:
    """Return the page that answers one question, for a site without a server."""
    shown = shown_answer(connection, query, to)
    model = _short_name(query.model[0]) if query.model else "these runs"
    return render_page("question.html", f"{model}, {query.phase}", to, at="runs", shown_answer=shown)


def _by_floor(connection: Connection, result: BoardAnswer, to: Links) -> Iterator[tuple[str, Words]]:
    """Yield each least interactivity with the best row that reaches it."""
    best = {}
    for floor in FLOORS:
        if reaching := next((p for p in result.ranked if (p.interactivity or 0.0) >= floor), None):
            best[floor] = reaching
    describe(connection, best.values())
    for floor, each in best.items():
        yield f"{floor} tokens/s", list(_described(each, to))


def _question_text(changes: dict[str, Any]) -> str:
    if changes["input_len"] is None:
        return str(_short_name(changes["model"][0]))
    return f"{changes['input_len']:,} tokens in, {changes['output_len'] or 0:,} out"


def _short_name(model: str) -> str:
    return model.rpartition("/")[2]


def _sentence(result: BoardAnswer, to: Links) -> Iterator[tuple[str, str]]:
    """Yield the answer in words; each part of the question leads to its rows, each number to its run."""
    question, goal = result.query, result.goal
    yield "For ", ""
    if question.model:
        name = " or ".join(_short_name(model) for model in question.model)
        yield name, to.table(phase=question.phase, model=question.model)
    else:
        yield "these runs", ""
    if result.workload:
        key, label = result.workload
        words = [part for part in label.split(", ")[1:] if not part.startswith("data ")]
        yield f", {', '.join(words)}" if question.model else "", to.workload(key)
    elif question.input_len and question.output_len:
        lengths: dict[str, Any] = {
            "phase": question.phase,
            "model": question.model,
            "input_len": question.input_len,
            "output_len": question.output_len,
        }
        yield ", ", ""
        yield f"{question.input_len:,} tokens in and {question.output_len:,} out", to.table(**lengths)
    if question.interactivity:
        yield f", at {amount(question.interactivity)} tokens/s per user or more", ""
    yield f": {goal.words}", ""
    if not result.best:
        yield ": no row reaches that.", ""
        return
    named = result.best[:_NAMED]
    kinds = {BADGES[each.run["state"]].word for each in named}
    for number, each in enumerate(named):
        without = named[number - 1].run[result.by] or "unknown"
        yield f"; without {without}: " if number else ": ", ""
        yield from _described(each, to)
        yield f" ({BADGES[each.run['state']].word})" if len(kinds) > 1 else "", ""
    yield ".", ""
    if len(kinds) == 1:
        subject = "These numbers are" if len(named) > 1 else "This number is"
        (kind,) = kinds
        yield f" {subject} {kind}{'' if kind == BADGES[State.VERIFIED].word else ', not measured here'}.", ""
    if result.is_derived:
        yield f" Throughput is {DERIVED}.", ""
    if result.measured and result.measured not in named:
        yield " The best that was measured here: ", ""
        yield from _described(result.measured, to)
        yield ".", ""


def _described(each: Candidate, to: Links) -> Iterator[tuple[str, str]]:
    run = each.run
    parts = [
        hardware_text(run) or "unknown hardware",
        name_and_version(run, "framework", "framework_version"),
        run["communication_library"] or "",
        run["precision"] or "",
    ]
    at = (
        f" at {amount(each.interactivity)} tokens/s per user"
        if each.interactivity and each.unit == "tokens/s"
        else ""
    )
    yield ", ".join(filter(None, [*parts, with_unit(each.value, each.unit)])), to.run(run["id"])
    yield at, ""


def _pair(pair: PairedLibraries, result: BoardAnswer, to: Links) -> Iterator[tuple[str, str]]:
    """Yield the comparison of two libraries in words."""
    change = (pair.middle - 1) * 100
    is_less = change < 0
    is_time = result.goal.one_work or result.goal.metric == "TTFT"
    more = ("shorter" if is_less else "longer") if is_time else ("lower" if is_less else "higher")
    low, high = (min(pair.ratios) - 1) * 100, (max(pair.ratios) - 1) * 100
    yield f"{pair.second} against {pair.first}: {result.goal.title} {abs(change):.1f} % {more}", ""
    count = len(pair.ratios)
    yield (
        (
            f" (median of {counted(count, 'pair')}, {low:+.1f} to {high:+.1f} %): "
            if count > 1
            else " (1 pair): "
        ),
        "",
    )
    for number, runs in enumerate(pair.runs[:_BARS], start=1):
        yield f"{number}", to.compare(runs)
        yield " ", ""


# The picture, in pixels from the top left.
_WIDTH, _HEIGHT = 860, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 836, 16, 322
_NAME = 90
"""Room for the name of a system right of its line."""


def _picture(connection: Connection, result: BoardAnswer) -> Picture | None:
    points = [each for each in result.points if each.interactivity and each.value > 0]
    if not points:
        return None
    hollow = result.hollow
    xs = [each.interactivity or 1.0 for each in points]
    ys = [*(each.value for each in points), *(each.value for each in hollow)]
    across, up = log_ticks(min(xs), max(xs)), log_ticks(min(ys), max(ys))

    def x_of(value: float) -> float:
        return round(_LEFT + _share(value, across) * (_RIGHT - _LEFT), 1)

    def y_of(value: float) -> float:
        return round(_BOTTOM - _share(value, up) * (_BOTTOM - _TOP), 1)

    leading = sorted(result.fronts, key=lambda name: -max(p.value for p in result.fronts[name]))
    colours = {name: min(number, _SYSTEMS) for number, name in enumerate(leading, start=1)}
    on_front = {id(p) for front in result.fronts.values() for p in front}
    others = [p for p in points if id(p) not in on_front]
    step = max(1, -(-len(others) // _OTHER_POINTS))
    leaders = sorted((p for front in result.fronts.values() for p in front), key=lambda p: str(p.run["id"]))
    drawn = [*others[::step], *(p for p in leaders if p.value > 0)]
    describe(connection, drawn)
    dots = [
        Dot(
            x_of(p.interactivity or 1.0),
            y_of(p.value),
            p.run["id"],
            f"{hardware_text(p.run)}, {p.run['framework'] or ''}: {with_unit(p.value, p.unit)} at "
            f"{amount(p.interactivity or 0)} tokens/s per user",
            colours.get(p.run["hardware"] or "unknown", _SYSTEMS),
            is_reported=p.run["state"] == STATE,
        )
        for p in drawn
    ]
    dots += [
        Dot(
            x_of(h.interactivity),
            y_of(h.value),
            h.run["id"],
            f"{h.run['hardware']}: about {amount(h.value)} at {amount(h.interactivity)} tokens/s per user, "
            "between measured points",
            colours.get(h.run["hardware"] or "unknown", _SYSTEMS),
            is_hollow=True,
        )
        for h in hollow
    ]
    lines = []
    for name, front in result.fronts.items():
        places = sorted((x_of(p.interactivity or 1.0), y_of(p.value)) for p in front)
        path = "M" + " L".join(f"{x},{y}" for x, y in places) if len(places) > 1 else ""
        x, y = places[-1]
        is_inside = x + _NAME < _RIGHT
        beside = (round(x + 8, 1), round(y + 4, 1), "start") if is_inside else (x, round(y - 9, 1), "end")
        lines.append(Front(colours[name], path, name, *beside))
    least = result.query.interactivity
    floor = x_of(least) if least and across[0] <= least <= across[-1] else None
    return Picture(
        _WIDTH,
        _HEIGHT,
        dots,
        lines,
        [(colours[name], name) for name in leading],
        [(x_of(tick), amount(tick)) for tick in across],
        [(y_of(tick), amount(tick)) for tick in up],
        floor,
        ("tokens/s per user", result.goal.title),
        f"{result.goal.title} against tokens/s per user: {counted(len(points), 'point')} of "
        f"{', '.join(leading)}",
    )


_WIDE = 3
"""Powers of ten between the ends of an axis above which 2 and 5 would crowd it."""


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten around a range, and powers of ten alone around a wide one."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= _WIDE else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    below = [tick for tick in ticks if tick <= low] or ticks[:1]
    above = [tick for tick in ticks if tick >= high] or ticks[-1:]
    chosen = [tick for tick in ticks if below[-1] <= tick <= above[0]]
    return chosen if len(chosen) > 1 else [chosen[0], chosen[0] * 10]


def _share(value: float, ticks: Sequence[float]) -> float:
    return math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0])


def _bars(connection: Connection, result: BoardAnswer) -> list[Bar]:
    """Return bars of the best rows, one for each configuration."""
    shown = result.ranked[:_BARS]
    describe(connection, shown)
    longest = max((p.value for p in shown), default=1.0) or 1.0
    return [
        Bar(
            ", ".join(
                filter(None, (hardware_text(p.run), p.run["framework"], p.run["communication_library"]))
            ),
            p.run["id"],
            with_unit(p.value, p.unit),
            round(100 * p.value / longest, 1),
            parallelism_text(p.run),
            p.run["state"] == STATE,
        )
        for p in shown
    ]
