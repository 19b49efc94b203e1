"""Scales, marks and colours of charts, from numbers that can be followed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ccl_bench.report.charts.bars import (
    bars,
    heat_map,
    in_order,
    linear_scale,
    log_scale,
    names,
    rows_height,
    stacked,
    steps_of_ramp,
)
from ccl_bench.report.charts.flames import flame, stacked_areas
from ccl_bench.report.charts.lines import (
    band_over_names,
    curves,
    lines_over_names,
    memory_curve,
    ranges_over_names,
    spread_over_size,
)
from ccl_bench.report.theme import CATEGORY
from ccl_bench.result.report_data import MemoryCurve

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("largest", "first"),
    [
        (70, 10), (7 * 1.5, 1.5), (7 * 2, 2), (7 * 2.5, 2.5), (7 * 3, 3), (7 * 4, 4), (7 * 5, 5), (7 * 6, 6),
        (7 * 8, 8), (7 * 8.1, 10), (7 * 1.2, 1.5), (7 * 1.7, 2), (7 * 2.1, 2.5), (7 * 2.7, 3), (7 * 3.5, 4),
        (7 * 4.5, 5), (7 * 5.5, 6), (7 * 7, 8), (7 * 1.001, 1), (7 * 1.002, 1.5), (0.07, 0.01), (7e6, 1e6),
    ],
)  # fmt: skip
def test_the_bounds_of_seven_colours_are_the_next_round_number_and_its_multiples(
    largest: float, first: float
) -> None:
    assert steps_of_ramp(largest) == pytest.approx([first * place for place in range(1, 7)])


def test_where_all_is_0_or_unknown_the_colours_reach_to_about_1() -> None:
    about_1 = pytest.approx([0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
    assert steps_of_ramp(0.0) == about_1
    for values in ([[0.0, None]], [[None, None]]):
        spec = heat_map(["a"], ["b", "c"], values, of=("row", "column", "value"))
        assert spec["encoding"]["color"]["scale"]["domain"] == about_1


def test_an_axis_of_names_has_a_title_if_there_is_one() -> None:
    assert names("rank", ["1", "0"]) == {"type": "nominal", "sort": ["1", "0"], "title": "rank", "axis": {}}
    assert names("", ["1"], labelAngle=0) == {
        "type": "nominal", "sort": ["1"], "title": None, "axis": {"labelAngle": 0},
    }  # fmt: skip


def test_a_flame_has_boxes_from_a_thousandth_on_and_equal_ones_by_name() -> None:
    rows = [(["big"], 997.0), (["y"], 1.0), (["x"], 1.0), (["low"], 0.9375), (["lower"], 0.0625)]
    spec = flame(rows, of="frame", unit="s", shorter={})
    # x and y are exactly 1 of 1000, a thousandth.
    assert [box["name"] for box in spec["data"]["values"]] == ["big", "x", "y"]
    colour = spec["layer"][0]["encoding"]["color"]["scale"]
    assert colour["domain"] == [0, 1, 2, 3]
    assert colour["range"] == ["var(--c2)", "var(--c6)", "var(--c4)", "var(--c7)"]
    assert flame([(["a"], 0.0)], of="frame", unit="s", shorter={})["data"]["values"] == []


@pytest.mark.parametrize(
    ("rows", "height"),
    [(1, 24), (16, 16 * 24), (17, 17 * 14), (32, 32 * 14), (33, 33 * 8), (72, 72 * 8), (73, 73 * 5)],
)
def test_many_rows_are_lower_than_few(rows: int, height: int) -> None:
    assert rows_height(rows) == height


@pytest.mark.parametrize(
    ("values", "domain"),
    [
        ([95, 100], None),
        ([100, 110, 50], None),
        ([96, 100], [98 * 0.975, 98 * 1.025]),
        ([100, 100], [97.5, 102.5]),
        ([], None),
    ],
)
def test_a_scale_spans_a_twentieth_of_its_values_at_least(
    values: list[float], domain: list[float] | None
) -> None:
    scale = linear_scale(values)
    assert (scale["zero"], scale["nice"]) == (False, True)
    assert scale.get("domain") == (None if domain is None else pytest.approx(domain))


@pytest.mark.parametrize(
    ("least", "most", "marks"),
    [
        (1, 100, [1, 2, 5, 10, 20, 50, 100]),
        (2, 99, [2, 5, 10, 20, 50]),
        (1, 1000, [1, 10, 100, 1000]),  # four powers of ten
        (1, 5e6, [1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6]),
        (1, 1e7, [1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7]),  # eight marks
        (1, 1e8, [1, 1e2, 1e4, 1e6, 1e8]),  # every second of nine
        (1.2, 1.8, []),
    ],
)
def test_a_logarithmic_scale_has_at_most_eight_round_marks(
    least: float, most: float, marks: list[float]
) -> None:
    scale, shown = log_scale(least, most)
    assert scale == {"type": "log", "domain": [least, most], "nice": False}
    assert shown == marks


def test_a_logarithmic_scale_may_have_room_around() -> None:
    scale, shown = log_scale(2, 30, room=2)
    assert scale["domain"] == [1, 60]
    assert shown == [1, 2, 5, 10, 20, 50]


def test_up_to_16_bars_lie() -> None:
    parts = [("busy", "red"), ("idle", "grey")]

    def drawn(count: int) -> dict[str, Any]:
        rows = [(str(number), {"busy": 1.0, "idle": 2.0}) for number in range(count)]
        return stacked(rows, parts, title="time, s", of="rank")

    lying, standing = drawn(16), drawn(17)
    assert (lying["encoding"]["x"]["field"], lying["encoding"]["y"]["field"]) == ("value", "rank")
    assert (standing["encoding"]["x"]["field"], standing["encoding"]["y"]["field"]) == ("rank", "value")
    assert (lying["mark"], standing["mark"]) == (
        {"type": "bar", "height": {"band": 0.8}},
        {"type": "bar", "width": {"band": 0.8}},
    )
    assert lying["height"] == 16 * 24
    assert lying["data"]["values"][:2] == [
        {"rank": "0", "part": "busy", "value": 1.0, "place": 0},
        {"rank": "0", "part": "idle", "value": 2.0, "place": 1},
    ]


@pytest.mark.parametrize(("rows", "width"), [(32, 1), (33, 0)])
def test_cells_of_up_to_32_rows_are_apart(rows: int, width: int) -> None:
    names = [str(number) for number in range(rows)]
    spec = heat_map(names, ["a", "b"], [[7.0, None]] * rows, of=("rank", "step", "time, s"))
    assert spec["mark"]["strokeWidth"] == width
    assert spec["data"]["values"] == [{"row": name, "column": "a", "value": 7.0} for name in names]
    assert spec["encoding"]["color"]["scale"]["domain"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("count", "has_dots"), [(60, True), (61, False)])
def test_lines_of_up_to_60_points_have_dots(count: int, has_dots: bool) -> None:
    names = [str(number) for number in range(count)]
    spec = lines_over_names(names, {"0": [1.0] * count, "1": [None] * count}, x="step", y="s", of="rank")
    assert spec["mark"]["point"] is has_dots
    assert len(spec["data"]["values"]) == count
    band = band_over_names([(name, 1.0, 2.0, 3.0) for name in names], x="step", y="time, s")
    assert bool(band["layer"][1]["mark"]["point"]) is has_dots


@pytest.mark.parametrize(("kinds", "aside"), [(1, [0]), (2, [-3.5, 3.5]), (3, [-7, 0, 7])])
def test_points_of_the_same_size_are_apart_around_it(kinds: int, aside: list[float]) -> None:
    points = [
        {"kind": str(kind), "bytes": size, "low": 16.0, "middle": 20.0, "high": 25.0, "calls": 1}
        for kind in range(kinds)
        for size in (1000, 4000)
    ]
    spec = spread_over_size(points, x="size", y="rate, GB/s", peaks=[("link", 50.0)])
    *drawn, peak = spec["layer"]
    assert [[mark["mark"]["xOffset"] for mark in layer["layer"]] for layer in drawn] == [
        [each, each] for each in aside
    ]
    assert [len(layer["data"]["values"]) for layer in drawn] == [2] * kinds
    assert drawn[0]["encoding"]["x"]["scale"]["domain"] == [500, 8000]
    assert drawn[0]["layer"][0]["encoding"]["y"]["scale"]["domain"] == [10, 80]
    assert peak["data"]["values"] == [{"peak": 50.0, "name": "link"}]


def test_references_are_dotted_lines_that_the_scale_has_room_for() -> None:
    points = [{"kind": "k", "bytes": 1000, "low": 16.0, "middle": 20.0, "high": 25.0, "calls": 1}]
    line = [
        {"kind": "k", "bytes": size, "rate": rate, "reaches": "r"}
        for size, rate in ((500, 8.0), (2000, 80.0))
    ]
    spec = spread_over_size(points, x="size", y="rate, GB/s", peaks=[], references=line)
    drawn = spec["layer"][-1]
    assert drawn["data"]["values"] == line
    assert drawn["mark"]["strokeDash"]
    assert drawn["encoding"]["y"]["scale"]["domain"] == [5, 128]
    assert drawn["encoding"]["x"]["scale"]["domain"] == [500, 2000]
    assert len(spread_over_size(points, x="size", y="rate, GB/s", peaks=[])["layer"]) == 1


def test_memory_is_drawn_in_gb() -> None:
    curve = MemoryCurve("0", 1, True, [0.5], [1_000_000_000], [2_500_000_000], [4_000_000_000])
    assert memory_curve(curve, "time, s")["data"]["values"] == [
        {"at": 0.5, "low": 1.0, "allocated": 2.5, "reserved": 4.0}
    ]


def _numbers(spec: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and switches of a specification by their last two keys, without data and scales."""
    if isinstance(spec, dict):
        for key, inner in spec.items():
            if key not in {"values", "domain"}:
                yield from _numbers(inner, (*path, key))
    elif isinstance(spec, list):
        for inner in spec:
            yield from _numbers(inner, path)
    elif isinstance(spec, bool | int | float) and len(path) > 1:
        yield ".".join(path[-2:]), spec


def _look(spec: dict[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in _numbers(spec):
        if value not in found.setdefault(name, []):
            found[name].append(value)
    return found


SPREAD = [("a", 1.0, 2.0, 3.0)]
POINT = {"kind": "k", "bytes": 1000, "low": 16.0, "middle": 20.0, "high": 25.0, "calls": 1}
PARTS = [("p", "red"), ("q", "blue")]
TWO = {"p": 1.0, "q": 1.0}
AXES = {"x": "x", "y": "y"}


@pytest.mark.parametrize(
    ("spec", "look"),
    [
        (
            bars([("a", 1.0)], title="t", unit="u"),
            {"height.band": [0.72], "mark.cornerRadiusEnd": [2], "axis.tickCount": [5]},
        ),
        (
            stacked([("a", TWO)], PARTS, title="t", of="o"),
            {"height.band": [0.8], "axis.tickCount": [6], "legend.columns": [2]},
        ),
        (
            stacked([(str(number), TWO) for number in range(17)], PARTS, title="t", of="o"),
            {"width.band": [0.8], "axis.tickCount": [6], "axis.labelAngle": [0], "legend.columns": [2]},
        ),
        (
            heat_map(["a"], ["b"], [[7.0]], of=("r", "c", "v")),
            {"mark.strokeWidth": [1], "axis.labelAngle": [0], "legend.gradientLength": [260]},
        ),
        (
            lines_over_names(["a"], {"r": [1.0], "s": [2.0]}, of="o", **AXES),
            {"mark.point": [True], "mark.strokeWidth": [1.6], "axis.labelAngle": [0], "scale.zero": [False],
             "scale.nice": [True], "axis.tickCount": [5], "legend.columns": [8]},
        ),
        (
            band_over_names(SPREAD, **AXES),
            {"mark.opacity": [0.25], "axis.labelAngle": [0], "scale.zero": [False], "scale.nice": [True],
             "axis.tickCount": [5]},
        ),
        (
            ranges_over_names(SPREAD, **AXES),
            {"mark.strokeWidth": [2], "mark.opacity": [0.55, 1], "mark.size": [36], "axis.labelAngle": [0],
             "scale.zero": [False], "scale.nice": [True], "axis.tickCount": [5]},
        ),
        (
            curves({"r": [(1.0, 2.0)], "s": [(1.0, 2.0)]}, of="o", **AXES),
            {"axis.tickCount": [6, 5], "axis.grid": [False], "scale.zero": [True], "scale.nice": [True],
             "legend.columns": [4]},
        ),
        (
            spread_over_size([POINT, POINT | {"kind": "l"}], peaks=[("p", 30.0)], **AXES),
            {"mark.strokeWidth": [2], "mark.opacity": [0.5, 1], "mark.size": [60], "mark.filled": [True],
             "mark.xOffset": [-3.5, 3.5], "mark.strokeDash": [5, 4], "mark.dy": [-4], "axis.grid": [False],
             "axis.labelFlush": [False], "scale.nice": [False], "legend.columns": [2],
             "legend.symbolOpacity": [1]},
        ),
        (
            memory_curve(MemoryCurve("0", 1, True, [0.5], [1], [2], [3]), "time, s"),
            {"mark.opacity": [0.3], "mark.strokeWidth": [1.2, 1.6], "axis.tickCount": [6, 5],
             "axis.grid": [False], "legend.columns": [2], "legend.symbolOpacity": [1],
             "select.nearest": [True], "condition.empty": [False], "condition.value": [0.6],
             "opacity.value": [0]},
        ),
        (
            flame([(["a"], 1.0)], of="o", unit="u", shorter={}),
            {"mark.strokeWidth": [1], "mark.dx": [4], "mark.fontSize": [11], "scale.nice": [False]},
        ),
        (
            stacked_areas([0.0], {"a": [1.0], "b": [1.0]}, of="o", **AXES),
            {"mark.line": [False], "scale.nice": [False], "legend.columns": [4]},
        ),
    ],
    ids=["bars", "stacked", "standing", "heat map", "lines", "band", "ranges", "curves", "sizes", "memory",
         "flame", "areas"],
)  # fmt: skip
def test_charts_look_as_they_were_chosen_to(spec: dict[str, Any], look: dict[str, list[Any]]) -> None:
    assert _look(spec) == look


def test_charts_without_a_height_of_their_own_are_220_pixels_high_and_one_colour_has_no_legend() -> None:
    spec = curves({"r": [(1.0, 2.0)]}, of="o", zero=False, **AXES)
    assert spec["height"] == 220
    assert spec["encoding"]["color"]["legend"] is None
    assert spec["encoding"]["y"]["scale"]["zero"] is False


def test_colours_repeat_after_the_last() -> None:
    found = in_order([str(number) for number in range(len(CATEGORY) + 1)])
    assert found[0] == ("0", CATEGORY[0])
    assert [*CATEGORY] == [f"var(--c{number})" for number in (1, 2, 3, 4, 5, 6, 7, 8)]
    assert found[-1] == (str(len(CATEGORY)), CATEGORY[0])
    assert len(dict(found[:-1]).values()) == len(set(dict(found[:-1]).values()))
