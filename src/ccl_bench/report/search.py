"""A search as a page: the best configuration, its trials, what is predicted to be faster, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__
from ccl_bench.base.text import counted
from ccl_bench.report.charts.bars import HEIGHT, colours, linear_scale, log_scale, names, stacked
from ccl_bench.report.forecast import short_configuration
from ccl_bench.report.formatting import duration
from ccl_bench.report.page_model import (
    Page,
    PageChart,
    PageSection,
    PageTable,
    PageVerdict,
    Quantity,
    Tile,
)
from ccl_bench.report.theme import CATEGORY

if TYPE_CHECKING:
    from ccl_bench.report.page_model import Cell, Spec
    from ccl_bench.result.forecast import Percentiles
    from ccl_bench.result.prediction import Memory
    from ccl_bench.result.search_report import ReportedTrial, SearchReport

_MEASURED, _PREDICTED, _FAILED = "●", "◇", "✕"
"""Shapes of what is measured, predicted, and failed: in tables as in the chart."""

_BOUND_TRIALS, _BOUND_PREDICTED = 8, 4
"""Fastest trials and predicted configurations whose bounds are drawn; tables have all."""

_FAR_APART = 5.0
"""Ratio of the ends from which an axis is logarithmic: below it, a linear one has room for all."""

_SPREAD = "p50 (p10 to p90)"
_INTERVAL = "in eight of ten cases the measured step is between p10 and p90"


def page_of_search(report: SearchReport) -> Page:
    """Return the page of a search; the same report gives the same page."""
    identity = (
        ("model", report.model or ""),
        ("devices", f"{report.gpus} x {report.gpu or 'a device that the card does not name'}"),
        ("step", f"{report.global_batch:,} sequences of {report.seq_len:,} tokens, in every trial"),
        ("search", report.name),
    )
    status = Counter(each.status for each in report.trials)
    tiles = [Tile("Trials", Quantity(len(report.trials), str(len(report.trials))), note=_counts(status))]
    best = next((each for each in report.trials if each.number == report.best), None)
    if best is not None and best.tokens_per_s_per_gpu and best.measured_s:
        tiles = [
            Tile("Tokens per second and device", _amount(best.tokens_per_s_per_gpu), better="higher"),
            *(
                [Tile("Tokens per dollar", _amount(best.tokens_per_dollar), better="higher")]
                if best.tokens_per_dollar
                else []
            ),
            Tile("Step", Quantity(best.measured_s, duration(best.measured_s)), better="lower"),
            *tiles,
        ]
    return Page(
        f"Search: {report.model or report.name}",
        tuple((name, text) for name, text in identity if text),
        tuple(tiles),
        (),
        (_trials(report), _untried(report), _bounds(report), _predictions(report)),
        made_by=f"ccl-bench {__version__}",
        verdict=PageVerdict(_answer(report, best), remarks=tuple(_remarks(report, status))),
    )


def _answer(report: SearchReport, best: ReportedTrial | None) -> str:
    if best is None or best.tokens_per_s_per_gpu is None:
        return "No trial has a measured step."
    speed = f"{best.tokens_per_s_per_gpu:,.0f} tokens per second and device"
    if report.objective == "dollar" and best.tokens_per_dollar:
        speed = f"{best.tokens_per_dollar:,.0f} tokens per dollar"
    gain = "it is the first trial that was measured"
    if best.number != report.first and report.gain_ratio:
        gain = f"{report.gain_ratio:.2f} times those of trial {report.first}, the first that was measured"
    return f"Best measured configuration: {short_configuration(best.configuration)}, {speed}; {gain}."


def _remarks(report: SearchReport, status: Counter[str]) -> list[str]:
    remarks = []
    if status["failed"] or status["oom"]:
        remarks.append(f"{counted(status['failed'] + status['oom'], 'trial')} failed: the table has reasons.")
    if report.price_per_device_hour:
        remarks.append(f"The price is {report.price_per_device_hour:g} US dollars for a device and hour.")
    return remarks


def _counts(status: Counter[str]) -> str:
    words = {"oom": "failed for memory"}
    return ", ".join(f"{count} {words.get(name, name)}" for name, count in status.items())


def _trials(report: SearchReport) -> PageSection:
    charts = (_by_trial(report),) if any(each.measured_s for each in report.trials) else ()
    has_price = report.price_per_device_hour is not None
    rows: list[tuple[Cell, ...]] = []
    for each in report.trials:
        state = f"{_FAILED} {each.status}: {each.reason}" if each.measured_s is None else "measured"
        if each.status == "running":
            state = "running"
        if each.number == report.best:
            state = "measured, the best"
        held = {True: "inside", False: "outside", None: "-"}[each.within_interval]
        rows.append(
            (
                Quantity(each.number, str(each.number)),
                short_configuration(each.configuration),
                state,
                _rate(each.tokens_per_s_per_gpu),
                *([_rate(each.tokens_per_dollar)] if has_price else []),
                _seconds(each.measured_s),
                "-" if each.predicted_s is None else _interval(each.predicted_s),
                held,
                _bytes(each.memory),
                _bound_by(each.bounds),
            )
        )
    head = (
        *("trial", "configuration", "status", "tokens/s/GPU", *(["tokens/$"] if has_price else [])),
        *("measured, s", f"predicted, s: {_SPREAD}", "interval", "memory need, GiB", "bound by"),
    )
    table = PageTable(
        head,
        tuple(rows),
        "Trials, in their order",
        "Memory needs are counted from shapes.",
        numeric=frozenset({0, *range(3, len(head) - 3), len(head) - 2}),
        wide=frozenset({1, 2}),
    )
    about = f"Each prediction was made before its trial ran: {_INTERVAL}."
    return PageSection("trials", "Trials", about, charts=charts, tables=(table,))


def _by_trial(report: SearchReport) -> PageChart:
    """Return measured and predicted tokens per second and device by trial, and the best so far."""
    work = report.global_batch * report.seq_len / report.gpus
    rows: list[dict[str, Any]] = []
    best = 0.0
    for each in report.trials:
        best = max(best, each.tokens_per_s_per_gpu or 0.0)
        row: dict[str, Any] = {
            "trial": str(each.number),
            "configuration": short_configuration(each.configuration),
            "measured": each.tokens_per_s_per_gpu,
            "best": best or None,
            "status": each.status,
        }
        if each.predicted_s:
            row |= {"low": work / each.predicted_s.p90, "middle": work / each.predicted_s.p50}
            row["high"] = work / each.predicted_s.p10
        rows.append(row)
    values = [row[name] for row in rows for name in ("measured", "low", "high") if row.get(name)]
    scale, marks = linear_scale(values), None
    if max(values) > _FAR_APART * min(values):
        scale, marks = log_scale(min(values), max(values), room=1.1)
    axis: dict[str, Any] = {"type": "quantitative", "title": "tokens/s per device", "scale": scale}
    axis["axis"] = {"tickCount": 5} if marks is None else {"values": marks, "format": "~s"}
    parts = [("measured", CATEGORY[0]), ("predicted", CATEGORY[1]), ("best so far", CATEGORY[2])]

    def colour(name: str) -> dict[str, Any]:
        return {"color": {"datum": name, **colours(parts, columns=3, symbolOpacity=1)}}

    tooltip = [
        {"field": "trial", "title": "trial"},
        {"field": "configuration", "title": "configuration"},
        {"field": "status", "title": "status"},
        *(
            {"field": name, "title": title, "format": ",.4~g"}
            for name, title in (
                ("measured", "measured tokens/s per device"),
                ("low", "predicted, 10 % are below"),
                ("middle", "predicted, median"),
                ("high", "predicted, 10 % are above"),
            )
        ),
    ]
    across = {"field": "trial", **names("trial", [row["trial"] for row in rows], labelAngle=0)}
    spec: Spec = {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": rows},
        "encoding": {"x": across, "tooltip": tooltip},
        "layer": [
            {
                "transform": [{"filter": "isValid(datum.best)"}],
                "mark": {"type": "line", "interpolate": "step-after", "strokeDash": [5, 3]},
                "encoding": {"y": {"field": "best", **axis}, **colour("best so far")},
            },
            {
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.5},
                "encoding": {"y": {"field": "low", **axis}, "y2": {"field": "high"}, **colour("predicted")},
            },
            {
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "point", "shape": "diamond", "filled": False, "size": 80, "opacity": 1},
                "encoding": {"y": {"field": "middle", **axis}, **colour("predicted")},
            },
            {
                "transform": [{"filter": "isValid(datum.measured)"}],
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {"y": {"field": "measured", **axis}, **colour("measured")},
            },
            {
                "transform": [{"filter": "datum.status == 'failed' || datum.status == 'oom'"}],
                "mark": {"type": "text", "text": _FAILED, "color": "var(--error)", "baseline": "bottom"},
                "encoding": {"y": {"value": HEIGHT - 2}},
            },
        ],
    }
    failed = [str(each.number) for each in report.trials if each.status in {"failed", "oom"}]
    summary = (
        "A filled circle is a measured step, an open diamond with a bar was predicted before it: eight of "
        "ten measured steps should be on their bar. The dashed line is the best so far."
    )
    if failed:
        summary += f" Failed, with a cross: {', '.join(failed)}."
    cells = tuple(
        (
            Quantity(int(row["trial"]), row["trial"]),
            row["configuration"],
            *(_rate(row.get(name)) for name in ("measured", "low", "middle", "high", "best")),
        )
        for row in rows
    )
    head = ("trial", "configuration", "measured", "predicted, low", "predicted, median", "predicted, high")
    data = PageTable(
        (*head, "best so far"), cells, numeric=frozenset({0, 2, 3, 4, 5, 6}), wide=frozenset({1})
    )
    title = "Measured and predicted tokens per second and device"
    return PageChart("by-trial", title, spec, summary, data, is_wide=True)


def _untried(report: SearchReport) -> PageSection:
    title = "Predicted, not measured"
    if not report.predicted:
        why = "Every configuration that fits was tried." if not report.untried else ""
        why = why or "No trial has a measured step to predict from, or none shows what the others cost."
        return PageSection("predicted", title, absent=why)
    has_price = report.price_per_device_hour is not None
    rows: list[tuple[Cell, ...]] = [
        (
            f"{_PREDICTED} {short_configuration(each.configuration)}",
            each.kind,
            _interval(each.tokens_per_s_per_gpu),
            *([_interval(each.tokens_per_dollar)] if has_price and each.tokens_per_dollar else []),
            _interval(each.step_s),
            _bytes(each.memory),
            {True: "fits", False: "does not fit", None: "open"}[each.memory.fits],
            _bound_by(each.bounds),
        )
        for each in report.predicted
    ]
    head = (
        *("configuration", "status", f"tokens/s/GPU: {_SPREAD}"),
        *([f"tokens/$: {_SPREAD}"] if has_price else []),
        *(f"step, s: {_SPREAD}", "memory need, GiB", "memory", "bound by"),
    )
    more = report.untried - len(report.predicted)
    notes = [f"{counted(more, 'more untried configuration')} may fit into memory."] if more else []
    if hidden := report.untried - report.predictable:
        notes.append(
            f"{hidden} of all untried cannot be predicted: what a degree costs shows only in trials that "
            "vary it."
        )
    if report.without_memory:
        notes.append(f"{counted(report.without_memory, 'configuration')} left out: they do not fit.")
    table = PageTable(
        head,
        tuple(rows),
        "Best predicted configurations (calculated, none of them ran)",
        " ".join(notes),
        numeric=frozenset(range(2, len(head) - 2)),
        wide=frozenset({0}),
    )
    about = f"These numbers are predicted from the trials, and are no measurements: {_INTERVAL}."
    return PageSection("predicted", title, about, tables=(table,))


def _bounds(report: SearchReport) -> PageSection:
    title = "What bounds each configuration"
    ran = [each for each in report.trials if each.bounds]
    if not ran:
        return PageSection("bounds", title, absent="The model of a step is not fitted before a trial ran.")
    groups = list(ran[0].bounds)
    trials = [
        (f"{_shape(each)} {each.number}. {short_configuration(each.configuration)}", each) for each in ran
    ]
    predicted = [
        (f"{_PREDICTED} predicted: {short_configuration(each.configuration)}", each)
        for each in report.predicted
    ]
    fastest = sorted(trials, key=lambda each: each[1].measured_s or float("inf"))[:_BOUND_TRIALS]
    drawn = [(label, each.bounds) for label, each in fastest if each.measured_s]
    drawn += [(label, each.bounds) for label, each in predicted[:_BOUND_PREDICTED]]
    if not drawn:
        return PageSection("bounds", title, absent="No trial was measured, and nothing is predicted.")
    shares = [(label, {name: 100 * share for name, share in bounds.items()}) for label, bounds in drawn]
    parts = [(name, CATEGORY[place % len(CATEGORY)]) for place, name in enumerate(groups)]
    spec = stacked(shares, parts, title="share of the step, %", of="configuration")
    spec["encoding"]["y"] |= {"title": None, "axis": {"labelLimit": 320}}
    spec["encoding"]["x"]["scale"] = {"domain": [0, 100]}
    cells: list[tuple[Cell, ...]] = []
    for label, each in trials:
        cells.append((label, "measured" if each.measured_s else each.status, *_shares(each.bounds)))
    for label, unmeasured in predicted:
        cells.append((label, unmeasured.kind, *_shares(unmeasured.bounds)))
    numeric = frozenset(range(2, len(groups) + 2))
    table = PageTable(("configuration", "", *groups), tuple(cells), numeric=numeric, wide=frozenset({0}))
    label, first = drawn[0]
    summary = (
        f"{label} is bound by {_bound_by(first)} of its step. {_MEASURED} was measured, {_PREDICTED} is "
        "predicted."
    )
    chart = PageChart("bounds-chart", "Shares of the step", spec, summary, table, is_wide=True)
    about = (
        "The fitted model of a step divides it, also that of a measured one: a share is how much shorter the "
        "step is, per cent, if what bounds it gets better by one per cent. Step times alone do not separate "
        "all of it: after few or similar trials, compute, memory and links inside a node may stand for each "
        "other. ccl-bench diagnose shows where the time of a recorded trial went."
    )
    return PageSection("bounds", title, about, charts=(chart,))


def _predictions(report: SearchReport) -> PageSection:
    title = "How good predictions were"
    error, held = report.mean_error_ratio, report.within_interval_ratio
    if error is None or held is None:
        return PageSection("predictions", title, absent="No trial with a prediction was measured.")
    numbers = (
        Tile(
            "Mean error",
            Quantity(error, f"{100 * error:.1f} %"),
            better="lower",
            note=f"of {counted(report.predictions, 'prediction')}, made before the trial ran",
        ),
        Tile(
            "Inside the interval",
            Quantity(held, f"{100 * held:.0f} %"),
            note="80 % is what the interval promises",
        ),
    )
    return PageSection("predictions", title, numbers=numbers)


def _shape(trial: ReportedTrial) -> str:
    return _MEASURED if trial.measured_s else _FAILED if trial.status in {"failed", "oom"} else "○"


def _interval(each: Percentiles) -> Quantity:
    p10, p50, p90 = (_amount(value) for value in (each.p10, each.p50, each.p90))
    return Quantity(each.p50, f"{p50.text} ({p10.text} to {p90.text})")


def _seconds(value: float | None) -> Cell:
    return "-" if value is None else Quantity(value, f"{value:.4g}")


def _rate(value: float | None) -> Cell:
    return "-" if value is None else _amount(value)


def _amount(value: float) -> Quantity:
    return Quantity(value, f"{value:,.0f}" if value >= 100 else f"{value:.4g}")


def _bytes(need: Memory) -> Cell:
    return (
        "-" if need.needed_bytes is None else Quantity(need.needed_bytes, f"{need.needed_bytes / 2**30:.1f}")
    )


def _shares(bounds: dict[str, float]) -> tuple[Cell, ...]:
    return tuple(Quantity(share, f"{100 * share:.0f} %") for share in bounds.values())


def _bound_by(bounds: dict[str, float]) -> str:
    """Return what bounds a step most, with its share."""
    if not bounds:
        return "-"
    largest = max(bounds, key=lambda name: bounds[name])
    return f"{largest}, {100 * bounds[largest]:.0f} %"
