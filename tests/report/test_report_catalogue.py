"""The catalogue of metrics as text: its lists, the manual page of one metric, and what it assumes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench import metrics
from ccl_bench.catalog.assumptions import Assumption
from ccl_bench.report.catalogue import ListedMetric, as_csv, as_json, entries, manual_page, names, table
from ccl_bench.report.console import to_text

if TYPE_CHECKING:
    import pytest

    from ccl_bench.metrics import Metric

LISTED = [
    ListedMetric("mfu", "%", "higher", ("utilisation", "flops"), "Used share."),
    ListedMetric("busy", "s", "lower", (), "Time at work."),
    ListedMetric("idle", "s", "neither", ("gaps",), "Time at rest, of a rank."),
]


def test_metrics_and_their_other_names_are_listed_by_name() -> None:
    assert names(LISTED).splitlines() == ["busy", "flops", "gaps", "idle", "mfu", "utilisation"]
    assert [line.split(maxsplit=3) for line in to_text(table(LISTED)).splitlines()] == [
        ["METRIC", "UNIT", "BETTER", "WHAT IT IS"],
        ["busy", "s", "lower", "Time at work."],
        ["flops", "%", "higher", "Same as mfu."],
        ["gaps", "s", "neither", "Same as idle."],
        ["idle", "s", "neither", "Time at rest, of a rank."],
        ["mfu", "%", "higher", "Used share."],
        ["utilisation", "%", "higher", "Same as mfu."],
    ]


def test_the_list_is_csv_and_json_in_its_own_order() -> None:
    assert as_csv(LISTED).splitlines() == [
        "metric,unit,better,aliases,summary",
        "mfu,%,higher,utilisation flops,Used share.",
        "busy,s,lower,,Time at work.",
        'idle,s,neither,gaps,"Time at rest, of a rank."',
    ]
    text = as_json(LISTED)
    assert text.endswith("]\n")
    assert [(each["metric"], each["aliases"]) for each in json.loads(text)] == [
        ("mfu", ["utilisation", "flops"]), ("busy", []), ("idle", ["gaps"]),
    ]  # fmt: skip


def _metric(**changed: object) -> Metric:
    """Return a metric with some of its values changed."""
    return replace(metrics.load().get("exposed_wait_time"), **changed)  # type: ignore[arg-type]


def _facts(page: str) -> dict[str, str]:
    """Return the facts at the head of a manual page."""
    lines = page.split("\n\n")[0].splitlines()[1:]
    return {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}


def test_a_manual_page_has_the_other_names_of_its_metric_only() -> None:
    metric = _metric()
    page = manual_page(metric, {"waits": metric.name, "flops": "mfu", "stalls": metric.name})
    assert page.splitlines()[0] == metric.name
    facts = _facts(page)
    assert facts["also called"] == "waits, stalls"
    assert facts["unit"] == "s (lower is better)"
    assert "variant of" not in facts
    assert "also called" not in _facts(manual_page(metric, {"flops": "mfu"}))
    variant = _facts(manual_page(_metric(variant_of="waits_s", scale=2.5), {}))
    assert variant["variant of"] == "waits_s, times 2.5"


def test_assumptions_are_indented_with_their_checks_below_on_100_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [
        Assumption((), "a " * 60, ("torn", "late"), "clocks differ"),
        Assumption((), "steps are marked", ("unmarked",)),
        Assumption((), "hosts are alike", unwatched="one with fewer cores"),
    ]
    monkeypatch.setattr("ccl_bench.report.catalogue.assumed_in", lambda _: made)
    assert manual_page(_metric(), {}).partition("\nAssumes:\n")[2].splitlines() == [
        "    " + "a " * 47 + "a",  # 4 + 47 * 2 + 1 is 99; one more would end in column 101
        "    " + "a " * 11 + "a",
        "        checked by torn, late",
        "        no number: clocks differ",
        "    steps are marked",
        "        checked by unmarked",
        "    hosts are alike",
        "        not checked: one with fewer cores",
    ]


def test_a_variant_is_summed_up_by_what_it_varies() -> None:
    by_name = {each.metric: each for each in entries(metrics.load())}
    variants = [metric for metric in metrics.load() if metric.variant_of]
    assert variants
    assert {by_name[each.name].summary for each in variants} == {
        f"{each.variant_of} in another unit: {each.unit}" for each in variants
    }
    assert by_name["mfu"].summary == metrics.load().get("mfu").summary
