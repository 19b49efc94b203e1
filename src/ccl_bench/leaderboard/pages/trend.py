"""How one number moved from version to version: one line for each configuration."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.leaderboard.pages.scale import Area, name_labels, natural, round_ticks, version_labels
from ccl_bench.leaderboard.pages.words import hardware, parallelism
from ccl_bench.report.formatting import amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ccl_bench.leaderboard.pages.scale import Place
    from ccl_bench.leaderboard.store.answer import Listed, Number

BY = {
    "framework_version": "framework version",
    "communication_version": "communication library version",
    "tool_version": "ccl-bench version",
    "submitted_at": "date",
}
"""What the horizontal axis may be, and its name."""

AREA = Area()
_MOST_LINES = 8
_DAY = len("2026-01-31")
_NAMED = {"framework_version": "framework", "communication_version": "communication_library"}
"""Version → what it is the version of: told where there are several."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run as a point."""

    name: str
    """What the version is one of; empty for a date."""
    version: str
    configuration: str
    run: str
    number: Number

    @property
    def value(self) -> float:
        """The height of the point."""
        return self.number.value

    @property
    def at(self) -> Place:
        """The place of the point along the axis."""
        return self.name, self.version

    @property
    def told(self) -> str:
        """The point in words."""
        return f"{_words(self.at)}: {amount(self.value)} {self.number.unit}, {self.configuration}"


@dataclass(frozen=True, slots=True)
class Line:
    """The runs of one configuration, and the way through the best of each version."""

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
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    """Heights and their numbers."""
    labels: tuple[tuple[float, str], ...]
    """Places along the axis, and the version there."""
    names: tuple[tuple[float, str], ...]
    """The middle of each name's versions along the axis, and the name."""
    samples: tuple[Sample, ...]
    summary: str
    area: Area = AREA


def trend(runs: Sequence[Listed], metric: str, by: str) -> Trend | None:
    """Return the drawing of a metric by a version; None where no run has both.

    Only numbers that were measured alike are drawn: where there are several ways, the commonest.
    """
    samples = _samples(runs, metric, by)
    if not samples:
        return None
    places = sorted({sample.at for sample in samples}, key=_in_order)
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
        tuple(sorted(samples, key=lambda s: (_in_order(s.at), s.configuration, s.run))),
        _summary(metric, BY[by], places, samples),
    )


def configuration(run: Mapping[str, Any]) -> str:
    """Return what makes a line of its own: hardware, framework and parallelism."""
    return ", ".join(filter(None, (hardware(run), run["framework"], parallelism(run)))) or "unknown"


def _samples(runs: Sequence[Listed], metric: str, by: str) -> list[Sample]:
    found = []
    for listed in runs:
        number = listed.numbers.get(metric)
        version = str(listed.run[by] or "")[: _DAY if by == "submitted_at" else None]
        if number and version:
            name = listed.run[_NAMED[by]] or "" if by in _NAMED else ""
            found.append(Sample(name, version, configuration(listed.run), listed.run["id"], number))
    kinds = Counter(_kind(sample.number) for sample in found)
    commonest = max(kinds, key=lambda kind: (kinds[kind], kind), default=None)
    return [sample for sample in found if _kind(sample.number) == commonest]


def _kind(number: Number) -> tuple[int, str, str, str]:
    return number.revision, number.unit, number.better, number.measured


def _lines(samples: Sequence[Sample], across: Mapping[Place, float], ticks: Sequence[float]) -> list[Line]:
    """Return a line for each configuration, those with most runs first, and all others as points."""
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_name[sample.configuration].append(sample)
    names = sorted(by_name, key=lambda name: (-len(by_name[name]), name))
    own = names if len(names) <= _MOST_LINES else names[: _MOST_LINES - 1]
    rest = [sample for name in names[len(own) :] for sample in by_name[name]]
    lines = [(name, by_name[name]) for name in own]
    if rest:
        lines.append((f"{len(names) - len(own)} other configurations", rest))
    made = []
    for colour, (name, its) in enumerate(lines, start=1):
        best = _best(its) if its is not rest else {}
        corners = [f"{across[v]},{AREA.up(best[v], ticks)}" for v in sorted(best, key=_in_order)]
        points = tuple((across[s.at], AREA.up(s.value, ticks), s) for s in its)
        made.append(Line(name, colour, points, f"M{' L'.join(corners)}" if len(corners) > 1 else ""))
    return made


def _in_order(place: Place) -> tuple[str, tuple[tuple[int, int, str], ...]]:
    return place[0], natural(place[1])


def _words(place: Place) -> str:
    return " ".join(filter(None, place))


def _best(samples: Sequence[Sample]) -> dict[Place, float]:
    """Return the best value of each version."""
    best: dict[Place, float] = {}
    for sample in samples:
        choose = min if sample.number.better == "lower" else max
        best[sample.at] = choose(sample.value, best.get(sample.at, sample.value))
    return best


def _summary(metric: str, by: str, places: Sequence[Place], samples: Sequence[Sample]) -> str:
    """Return the drawing in words: the best of all, and how far it went where one thing has versions."""
    best, unit = _best(samples), samples[0].number.unit
    choose = min if samples[0].number.better == "lower" else max
    top = choose(samples, key=lambda sample: sample.value)
    text = f"The best {metric} is {amount(top.value)} {unit}: {_words(top.at)}, {top.configuration}."
    first, last = best[places[0]], best[places[-1]]
    if len(places) == 1 or places[0][0] != places[-1][0] or not first:
        return text
    return (
        f"{text} From {by} {places[0][1]} to {places[-1][1]} the best went from {amount(first)} "
        f"to {amount(last)} {unit} ({100 * (last - first) / abs(first):+.1f} %)."
    )
