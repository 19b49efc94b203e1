"""The page of a workload: the common fields of its runs, and the trend of a metric over versions."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.pages.render import hardware_text, parallelism_text, render_page
from ccl_bench.leaderboard.pages.titles import metric_title
from ccl_bench.leaderboard.store.query import default_columns
from ccl_bench.report.formatting import amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.store.query_result import ListedRun, RunNumber

_TICKS = 5
_DIGITS = 18
"""Number of digits of a number in a version that are compared: a stranger may write millions."""
_LONGEST = 14
"""Number of letters of a label."""
_LETTER = 7.0
"""Width of a letter in a label, in pixels."""

Place = tuple[str, str]
"""A name and a version of it."""


@dataclass(frozen=True, slots=True)
class Area:
    """The size of a drawing and of the area inside its axes, in pixels from the top left."""

    width: int = 860
    height: int = 340
    left: int = 76
    right: int = 836
    top: int = 16
    bottom: int = 288

    def across(self, place: int, places: int) -> float:
        """Return the middle of one of several equal places along the axis."""
        return round(self.left + (place + 0.5) * (self.right - self.left) / places, 1)

    def up(self, value: float, ticks: Sequence[float]) -> float:
        """Return the height of a value between the first and the last tick."""
        share = (value - ticks[0]) / (ticks[-1] - ticks[0])
        return round(self.bottom - share * (self.bottom - self.top), 1)


def version_labels(places: Sequence[Place], area: Area) -> Iterator[tuple[float, str]]:
    """Yield the positions of versions along the axis, as many as fit."""
    texts = [_shorten(version) for _, version in places]
    room = (area.right - area.left) / len(places)
    every = math.ceil(_LETTER * (max(map(len, texts)) + 1) / room)
    for nth in range(0, len(places), every):
        yield area.across(nth, len(places)), texts[nth]


def name_labels(places: Sequence[Place], area: Area) -> Iterator[tuple[float, str]]:
    """Yield each name once, at the middle of its versions along the axis."""
    for name, versions in groupby(enumerate(places), key=lambda each: each[1][0]):
        nths = [nth for nth, _ in versions]
        if name:
            ends = (area.across(nth, len(places)) for nth in (nths[0], nths[-1]))
            yield sum(ends) / 2, _shorten(name)


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def round_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from below `low` to above `high`, from 0 where that is not far below."""
    if 0 <= low < high / 2:
        low = 0.0
    rough = ((high - low) or abs(high) or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{step * place:.12g}") for place in range(first, max(last, first + 1) + 1)]


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts version 2.9 before 2.10."""
    return tuple(
        (1, int(part[:_DIGITS]), "") if part.isdecimal() and part.isascii() else (0, 0, part)
        for part in re.split(r"([0-9]+)", text)
    )


BY = {
    "framework_version": "framework version",
    "communication_version": "communication library version",
    "tool_version": "ccl-bench version",
    "submitted_at": "date",
}
"""Choices of the horizontal axis, with their names."""

AREA = Area()
_MAX_LINES = 8
"""Configurations with a colour of their own; the style sheet has as many."""
_NAMED = {"framework_version": "framework", "communication_version": "communication_library"}
"""Version column → column of the product's name, shown if there are several."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run as a point."""

    name: str
    """The product of the version; empty for a date."""
    version: str
    configuration: str
    """Hardware, framework and parallelism."""
    run: str
    number: RunNumber

    @property
    def value(self) -> float:
        """The height of the point."""
        return self.number.value

    @property
    def at(self) -> Place:
        """The place of the point along the axis."""
        return self.name, self.version

    @property
    def label(self) -> str:
        """The point in words."""
        return f"{_place_text(self.at)}: {amount(self.value)} {self.number.unit}, {self.configuration}"


@dataclass(frozen=True, slots=True)
class TrendLine:
    """The runs of one configuration, and the line through the best run of each version."""

    name: str
    colour: int
    """Number of the colour, from 1."""
    points: tuple[tuple[float, float, Sample], ...]
    path: str


@dataclass(frozen=True, slots=True)
class Trend:
    """A drawing of one metric."""

    metric: str
    by: str
    """Name of the horizontal axis."""
    unit: str
    better: str
    lines: tuple[TrendLine, ...]
    ticks: tuple[tuple[float, str], ...]
    """Heights and their numbers."""
    labels: tuple[tuple[float, str], ...]
    """Places along the axis, and the version there."""
    names: tuple[tuple[float, str], ...]
    """The middle of each name's versions along the axis, and the name."""
    samples: tuple[Sample, ...]
    summary: str
    area: Area = AREA


def build_trend(runs: Sequence[ListedRun], metric: str, by: str) -> Trend | None:
    """Return the drawing of a metric by a version; None if no run has both.

    Only numbers that were measured the same way are drawn: the most frequent way.
    """
    all_samples = []
    for listed in runs:
        run, number = listed.run, listed.numbers.get(metric)
        version = str(run[by] or "")
        if by == "submitted_at":
            version = version[: len("2026-01-31")]
        if number and version:
            name = run[_NAMED[by]] or "" if by in _NAMED else ""
            parts = filter(None, (hardware_text(run), run["framework"], parallelism_text(run)))
            all_samples.append(Sample(name, version, ", ".join(parts) or "unknown", run["id"], number))
    if not all_samples:
        return None
    ways = Counter(_way_of_measuring(sample.number) for sample in all_samples)
    commonest = max(ways, key=lambda way: (ways[way], way))
    samples = [sample for sample in all_samples if _way_of_measuring(sample.number) == commonest]
    places = sorted({sample.at for sample in samples}, key=_place_key)
    across = {place: AREA.across(nth, len(places)) for nth, place in enumerate(places)}
    values = [sample.value for sample in samples]
    ticks = round_ticks(min(values), max(values))
    lines = _lines(samples, across, ticks)
    number = samples[0].number
    return Trend(
        metric,
        BY[by],
        number.unit,
        number.better,
        tuple(lines),
        tuple((AREA.up(value, ticks), amount(value)) for value in ticks),
        tuple(version_labels(places, AREA)),
        tuple(name_labels(places, AREA)),
        tuple(sorted(samples, key=lambda s: (_place_key(s.at), s.configuration, s.run))),
        _summary(metric, BY[by], places, samples),
    )


def _way_of_measuring(number: RunNumber) -> tuple[int, str, str, str]:
    return number.revision, number.unit, number.better, number.measured


def _lines(
    samples: Sequence[Sample], across: Mapping[Place, float], ticks: Sequence[float]
) -> list[TrendLine]:
    """Return a line for each configuration, those with most runs first, and all others as points."""
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_name[sample.configuration].append(sample)
    names = sorted(by_name, key=lambda name: (-len(by_name[name]), name))
    line_names = names if len(names) <= _MAX_LINES else names[: _MAX_LINES - 1]
    rest = [sample for name in names[len(line_names) :] for sample in by_name[name]]
    lines = [(name, by_name[name]) for name in line_names]
    if rest:
        lines.append((f"{len(names) - len(line_names)} other configurations", rest))
    drawn_lines = []
    for colour, (name, line_samples) in enumerate(lines, start=1):
        best = _best(line_samples) if line_samples is not rest else {}
        corners = [f"{across[v]},{AREA.up(best[v], ticks)}" for v in sorted(best, key=_place_key)]
        points = tuple((across[s.at], AREA.up(s.value, ticks), s) for s in line_samples)
        drawn_lines.append(
            TrendLine(name, colour, points, f"M{' L'.join(corners)}" if len(corners) > 1 else "")
        )
    return drawn_lines


def _place_key(place: Place) -> tuple[str, tuple[tuple[int, int, str], ...]]:
    return place[0], version_key(place[1])


def _place_text(place: Place) -> str:
    return " ".join(filter(None, place))


def _best(samples: Sequence[Sample]) -> dict[Place, float]:
    """Return the best value of each version."""
    best: dict[Place, float] = {}
    for sample in samples:
        choose = min if sample.number.better == "lower" else max
        best[sample.at] = choose(sample.value, best.get(sample.at, sample.value))
    return best


def _summary(metric: str, by: str, places: Sequence[Place], samples: Sequence[Sample]) -> str:
    """Return a summary of the drawing: the best value, and its change over versions of one product."""
    best, unit = _best(samples), samples[0].number.unit
    choose = min if samples[0].number.better == "lower" else max
    top = choose(samples, key=lambda sample: sample.value)
    where = f"{_place_text(top.at)}, {top.configuration}"
    text = f"Best {metric_title(metric)}: {amount(top.value)} {unit}, {where}."
    first, last = best[places[0]], best[places[-1]]
    if len(places) == 1 or places[0][0] != places[-1][0] or not first:
        return text
    return (
        f"{text} From {by} {places[0][1]} to {places[-1][1]} the best went from {amount(first)} "
        f"to {amount(last)} {unit} ({100 * (last - first) / abs(first):+.1f} %)."
    )


def workloads_page(workloads: Sequence[dict[str, Any]], to: Links) -> str:
    """Return the list of workloads that have listed runs."""
    rows = [each | {"phase": json.loads(each["fields"]).get("model.phase", "any")} for each in workloads]
    return render_page("workloads.html", "Workloads", to, at="workloads", workloads=rows)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A choice of what to draw of a workload."""

    phase: str
    """Its phase; `any` if unknown."""
    offered: list[str]
    """Metrics that a run has a number of, by title."""
    usual: list[str]
    """Those of them that are drawn by default, the first one first."""
    metric: str
    by: str
    trend: Trend | None


def choose_drawing(workload: dict[str, Any], runs: Sequence[ListedRun], *, metric: str, by: str) -> Drawing:
    """Return the drawing that an address asks for, or the default one: of the first metric by what varies."""
    phase = json.loads(workload["fields"]).get("model.phase") or "any"
    offered = sorted({name for listed in runs for name in listed.numbers}, key=metric_title)
    columns = default_columns().get(phase, default_columns()["any"])
    usual = [name for name in columns if name in offered] or offered[:1]
    chosen_metric = metric if metric in offered else next(iter(usual), "")
    if by not in BY:
        varying = (each for each in BY if len({listed.run[each] for listed in runs if listed.run[each]}) > 1)
        by = next(varying, "submitted_at")
    return Drawing(phase, offered, usual, chosen_metric, by, build_trend(runs, chosen_metric, by))


def workload_page(
    workload: dict[str, Any],
    runs: Sequence[ListedRun],
    to: Links,
    *,
    metric: str = "",
    by: str = "",
) -> str:
    """Return the page of a workload, with the trend of a metric by a version or by date.

    A static site cannot draw a metric on request, so every default one of published runs is drawn.
    """
    chosen = choose_drawing(workload, runs, metric=metric, by=by)
    drawn = [chosen.trend]
    if to.is_static:
        # Points of a sweep differ in their load, so that no version orders them; questions have the curves.
        is_sweep = all(listed.run["concurrency"] and listed.run["source"] for listed in runs)
        drawn = [] if is_sweep else [build_trend(runs, name, chosen.by) for name in chosen.usual]
    return render_page(
        "workload.html",
        workload["label"],
        to,
        at="workloads",
        workload=workload | {"phase": chosen.phase},
        fields=json.loads(workload["fields"]),
        chosen=chosen,
        versions=BY,
        trends=[each for each in drawn if each],
    )
