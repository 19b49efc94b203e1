"""The report of a search, from a history whose numbers are counted by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from commands import invoke
from tables import rows

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.predict.candidates import candidates
from ccl_bench.predict.search_folder import (
    EARLIER,
    HISTORY,
    SETTINGS,
    Settings,
    is_search,
    read_settings,
    search_report,
    write_settings,
)
from ccl_bench.predict.trials import Trials

if TYPE_CHECKING:
    from pathlib import Path

VARY = ("tp", "dp", "pp")

TRIED = (
    # Configuration, measured step, percentiles of its prediction, status, reason.
    ({"tp": 4}, 0.4, None, "measured", None),
    ({"tp": 2, "dp": 2}, 0.2, (0.1, 0.25, 0.4), "measured", None),
    ({"tp": 1, "dp": 4}, None, (0.1, 0.15, 0.2), "oom", "exit status 1"),
    ({"tp": 2, "pp": 2}, 0.5, (0.2, 0.3, 0.4), "measured", None),
    ({"tp": 1, "dp": 2, "pp": 2}, None, (0.2, 0.3, 0.4), "running", None),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a search of five trials: three measured, one failed for memory, one running."""
    folder = tmp_path / "a-search"
    folder.mkdir()
    table = rows(*(each[0] for each in TRIED), global_batch=8)
    table = table.with_columns(
        pl.Series("step_s", [each[1] for each in TRIED], pl.Float64),
        *(
            pl.Series(f"predicted_{name}_s", [each[2][place] if each[2] else None for each in TRIED])
            for place, name in enumerate(("p10", "p50", "p90"))
        ),
        pl.Series("status", [each[3] for each in TRIED]),
        pl.Series("reason", [each[4] for each in TRIED]),
        number=pl.int_range(1, len(TRIED) + 1),
        folder=pl.format("trial-{}", pl.int_range(1, len(TRIED) + 1)),
    )
    table.write_csv(folder / HISTORY)
    write_settings(folder, Settings(VARY, "dollar", 3.6), None)
    return folder


def test_the_best_its_gain_and_the_errors_of_predictions_are_counted_by_hand(folder: Path) -> None:
    report = search_report(folder)
    assert (report.best, report.first, report.gain_ratio) == (2, 1, pytest.approx(2))
    best = report.trials[1]
    # Eight sequences of 1,024 tokens on four devices in 0.2 s; 3.6 dollars an hour are one in 1,000 s.
    assert best.tokens_per_s_per_gpu == pytest.approx(8 * 1024 / 4 / 0.2)
    assert best.tokens_per_dollar == pytest.approx(1000 * 8 * 1024 / 4 / 0.2)
    assert [each.within_interval for each in report.trials] == [None, True, None, False, None]
    assert report.mean_error_ratio == pytest.approx((0.05 / 0.2 + 0.2 / 0.5) / 2)
    assert (report.predictions, report.within_interval_ratio) == (2, 0.5)
    assert [each.memory.fits for each in report.trials][2] is False
    assert report.trials[4].status == "running"


def test_what_is_predicted_was_never_tried_and_is_marked(folder: Path) -> None:
    report = search_report(folder)
    tried = [each.configuration for each in report.trials]
    every = candidates(rows({"tp": 4}, global_batch=8), vary=VARY).height
    assert report.predicted
    assert all(each.configuration not in tried for each in report.predicted)
    assert {each.kind for each in report.predicted} == {"predicted"}
    assert report.untried + report.without_memory == every - len(TRIED)
    medians = [each.tokens_per_s_per_gpu.p50 for each in report.predicted]
    assert medians == sorted(medians, reverse=True)
    one = report.predicted[0]
    assert one.tokens_per_s_per_gpu.p10 == pytest.approx(8 * 1024 / 4 / one.step_s.p90)


def test_shares_of_what_bounds_a_configuration_add_up(folder: Path) -> None:
    report = search_report(folder)
    for each in (*report.trials, *report.predicted):
        assert sum(each.bounds.values()) == pytest.approx(1, abs=1e-3)
        assert set(each.bounds) == {
            *("compute", "memory", "host", "optimizer", "overheads of slots and steps"),
            *("communication inside a node", "communication between nodes"),
        }
        # Four devices are one node.
        assert each.bounds["communication between nodes"] == 0


def test_latency_is_between_nodes_if_tensor_parallelism_is() -> None:
    import numpy as np

    from ccl_bench.predict.calibration import Calibration
    from ccl_bench.predict.step_model import constants, step_s
    from ccl_bench.predict.trials import columns

    table = rows({"tp": 8}, {"tp": 4, "dp": 2}, global_batch=8)
    seconds = step_s(np.log([each.median for each in constants()]), columns(table))
    calibration = Calibration(columns(table), seconds)
    shares, grouped = calibration.bounds(columns(table)), calibration.grouped_bounds(columns(table))
    network = ("node_bandwidth", "tensor_parallel_outside")
    assert grouped[0]["communication between nodes"] == pytest.approx(
        sum(shares[0][name] for name in (*network, "latency_s"))
    )
    assert grouped[1]["communication inside a node"] == pytest.approx(
        sum(shares[1][name] for name in ("inside_bandwidth", "latency_s"))
    )


def test_settings_are_kept_and_earlier_trials_calibrate(folder: Path) -> None:
    assert read_settings(folder) == Settings(VARY, "dollar", 3.6)
    alone = search_report(folder)
    earlier = rows({"tp": 1, "dp": 2, "pp": 2}, global_batch=8, step_s=0.05, status="measured")
    write_settings(folder, Settings(VARY), Trials(earlier, "table"))
    assert (folder / EARLIER).exists()
    more = search_report(folder)
    assert more.trials[1].bounds != alone.trials[1].bounds
    assert more.best == alone.best
    (folder / SETTINGS).unlink()
    assert read_settings(folder) == Settings()
    (folder / SETTINGS).write_text('{"objective": "speed"}')
    with pytest.raises(InputError, match="no settings of a search"):
        read_settings(folder)


def test_the_report_of_a_search_has_the_forms_of_a_report(folder: Path, tmp_path: Path) -> None:
    assert is_search(folder)
    written = {}
    for name in ("page.html", "page.md", "page.json", "page.txt"):
        done = invoke(["ccl-bench", "report", str(folder), "-o", str(tmp_path / name)])
        assert done.returncode == 0, done.stderr
        written[name] = (tmp_path / name).read_text()
    assert json.loads(written["page.json"])["trials"][1]["tokens_per_s_per_gpu"] == pytest.approx(10240)
    for name in ("page.html", "page.md", "page.txt"):
        words = " ".join(written[name].split())
        assert (
            "Best measured configuration: tp 2 · dp 2 · pp 1, 10,240,000 tokens per dollar; 2.00 times"
            in words
        )
    refused = invoke(["ccl-bench", "report", str(folder), "--why"])
    assert refused.returncode == 2
    assert "this is a search" in refused.stderr


def test_another_folder_with_a_history_is_no_search(tmp_path: Path) -> None:
    assert not is_search(tmp_path)
    (tmp_path / HISTORY).write_text("step,loss\n1,2.5\n")
    assert not is_search(tmp_path)


def test_a_history_with_words_for_numbers_is_refused(folder: Path) -> None:
    path = folder / HISTORY
    path.write_text(path.read_text().replace("0.25", "soon"))
    with pytest.raises((InputError, UsageError), match="history"):
        search_report(folder)
