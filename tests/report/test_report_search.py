"""The page of a search, from a report made by hand."""

from __future__ import annotations

from dataclasses import replace

from ccl_bench.report.page_model import Quantity
from ccl_bench.report.render import render_page
from ccl_bench.report.search import page_of_search
from ccl_bench.result.forecast import Percentiles
from ccl_bench.result.prediction import Memory
from ccl_bench.result.search_report import ReportedTrial, SearchReport, UnmeasuredConfiguration

FITS = Memory(True, 3 * 2**30)
BOUNDS = {"compute": 0.7, "host": 0.3}


def _trial(
    number: int, measured_s: float | None, predicted: Percentiles | None, **other: object
) -> ReportedTrial:
    held = predicted.p10 <= measured_s <= predicted.p90 if predicted and measured_s else None
    trial = ReportedTrial(
        number=number,
        configuration={"tp": number, "dp": 1, "pp": 1},
        status="measured" if measured_s else "oom",
        reason=None if measured_s else "exit status 1",
        measured_s=measured_s,
        tokens_per_s_per_gpu=100 / measured_s if measured_s else None,
        tokens_per_dollar=None,
        predicted_s=predicted,
        within_interval=held,
        memory=FITS,
        bounds=BOUNDS,
        folder=f"trial-{number}",
    )
    return replace(trial, **other)  # type: ignore[arg-type]


REPORT = SearchReport(
    name="a-search", model="tiny", gpu="a100", gpus=4, global_batch=8, seq_len=50, objective="tokens",
    price_per_device_hour=None,
    trials=[
        _trial(1, 2.0, None),
        _trial(2, 1.0, Percentiles(0.5, 0.8, 1.25)),
        _trial(3, None, Percentiles(0.5, 0.8, 1.25)),
        _trial(4, 4.0, Percentiles(1.0, 2.0, 2.5)),
    ],
    best=2, first=1, gain_ratio=2.0,
    predicted=[
        UnmeasuredConfiguration(
            {"tp": 8, "dp": 1, "pp": 1}, Percentiles(0.1, 0.2, 0.4), Percentiles(250, 500, 1000), None, FITS,
            BOUNDS,
        )
    ],
    untried=3, predictable=2, without_memory=5, predictions=2, mean_error_ratio=0.35,
    within_interval_ratio=0.5,
)  # fmt: skip


def test_the_answer_comes_first_and_is_measured() -> None:
    page = page_of_search(REPORT)
    assert page.verdict is not None
    assert page.verdict.sentence == (
        "Best measured configuration: tp 2 · dp 1 · pp 1, 100 tokens per second and device; 2.00 times those "
        "of trial 1, the first that was measured."
    )
    assert [each.quantity.value for each in page.headline] == [100, 1.0, 4]


def test_predicted_configurations_are_in_no_table_of_trials_and_marked_in_words_and_shape() -> None:
    page = page_of_search(REPORT)
    trials, predicted = page.sections[:2]
    assert [row[1] for row in trials.tables[0].rows] == [f"tp {n} · dp 1 · pp 1" for n in (1, 2, 3, 4)]
    (row,) = predicted.tables[0].rows
    assert (row[0], row[1]) == ("◇ tp 8 · dp 1 · pp 1", "predicted")
    assert [each.text for each in row[2:4] if isinstance(each, Quantity)] == [
        "500 (250 to 1,000)",
        "0.2 (0.1 to 0.4)",
    ]
    assert "measured" not in str(row)
    assert predicted.title == "Predicted, not measured"
    assert predicted.tables[0].note == (
        "2 more untried configurations may fit into memory. 1 of all untried cannot be predicted: what a "
        "degree costs shows only in trials that vary it. 5 configurations left out: they do not fit."
    )


def test_rows_state_the_interval_and_the_reason_of_failures() -> None:
    rows = page_of_search(REPORT).sections[0].tables[0].rows
    assert [row[6] for row in rows] == ["-", "inside", "-", "outside"]
    assert [row[2] for row in rows] == ["measured", "measured, the best", "✕ oom: exit status 1", "measured"]
    assert rows[1][8] == "compute, 70 %"


def test_the_chart_has_measured_predicted_and_the_best_so_far() -> None:
    (chart,) = page_of_search(REPORT).sections[0].charts
    values = chart.spec["data"]["values"]
    # 8 sequences of 50 tokens on 4 devices are 100 tokens a device: a step of p90 gives the lowest rate.
    assert [(v["measured"], v["best"]) for v in values] == [(50, 50), (100, 100), (None, 100), (25, 100)]
    assert (values[1]["low"], values[1]["middle"], values[1]["high"]) == (80, 125, 200)
    shapes = [layer["mark"].get("shape", layer["mark"]["type"]) for layer in chart.spec["layer"]]
    assert shapes == ["line", "rule", "diamond", "point", "text"]
    assert chart.summary.endswith("Failed, with a cross: 3.")
    assert len(chart.table.rows) == 4


def test_bounds_of_measured_and_predicted_are_distinguished() -> None:
    (chart,) = page_of_search(REPORT).sections[2].charts
    drawn = list(dict.fromkeys(each["configuration"] for each in chart.spec["data"]["values"]))
    assert [label[0] for label in drawn] == ["●", "●", "●", "◇"]
    assert drawn[0] == "● 2. tp 2 · dp 1 · pp 1"
    assert [row[1] for row in chart.table.rows] == ["measured", "measured", "oom", "measured", "predicted"]
    cell = chart.table.rows[0][2]
    assert isinstance(cell, Quantity)
    assert cell.text == "70 %"


def test_a_search_without_a_measured_trial_says_so() -> None:
    failed = replace(
        REPORT, trials=[_trial(1, None, None, bounds={})], best=None, first=None, gain_ratio=None,
        predicted=[], predictions=0, mean_error_ratio=None, within_interval_ratio=None,
    )  # fmt: skip
    page = page_of_search(failed)
    assert page.verdict is not None
    assert page.verdict.sentence == "No trial has a measured step."
    assert [bool(each.absent) for each in page.sections] == [False, True, True, True]
    for form in ("html", "markdown", "text"):
        assert "No trial has a measured step" in " ".join(render_page(page, form).split())


def test_texts_of_strangers_are_harmless_on_the_page() -> None:
    name = "<img src=x>\u202e\x1b[31m"
    strange = replace(
        REPORT, model=name, name=name, trials=[_trial(1, None, None, reason=name), *REPORT.trials[1:]]
    )
    for form in ("html", "markdown", "text"):
        whole = render_page(page_of_search(strange), form)
        assert "\u202e" not in whole
        assert "\x1b" not in whole
        assert "<img src=x>" not in whole or form == "text"


def test_a_page_without_definitions_has_no_empty_parts() -> None:
    page = page_of_search(REPORT)
    assert [key for key, _ in page.outline()] == ["headline", "trials", "predicted", "bounds", "predictions"]
    assert 'id="definitions"' not in render_page(page, "html")
    assert "Data quality" not in render_page(page, "markdown")
