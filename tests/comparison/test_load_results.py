"""Results that were stored, and the card beside them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from results_by_hand import mean_of, result

from ccl_bench.comparison.compare import CROSSED, NOT_JUDGED, Comparison, compare_runs
from ccl_bench.comparison.load_results import RESULTS, load_results
from ccl_bench.comparison.run_results import RunResults, is_same_work, samples_of
from ccl_bench.comparison.thresholds import parse_threshold
from ccl_bench.result import Provenance, TraceProvenance, to_json

if TYPE_CHECKING:
    from pathlib import Path

CARD = "version: 1\nworkload:\n  data:\n    seq_len: 4096\n"
STEP = "iteration_wall_clock_time"


def stored(folder: Path, card_behind_results: str = "") -> Path:
    """Write results, and the hash of the card that they rest on if there is one."""
    found = mean_of(1.0, 2.0)
    if card_behind_results:
        digest = hashlib.sha256(card_behind_results.encode()).hexdigest()
        found = replace(found, provenance=replace(found.provenance, files={"workload_card.yaml": digest}))
    (folder / RESULTS).write_bytes(to_json([found]))
    return folder


@pytest.mark.parametrize(
    ("behind", "seq_len"), [(CARD, 4096), (CARD.replace("4096", "8192"), None), ("", None)]
)
def test_a_card_beside_stored_results_counts_if_they_rest_on_it(
    behind: str, seq_len: int | None, tmp_path: Path
) -> None:
    stored(tmp_path, behind)
    (tmp_path / "workload_card.yaml").write_text(CARD)
    found = load_results(str(tmp_path), [])
    assert found.results[STEP].value == 1.5
    assert found.fields.get("data.seq_len") == seq_len


def test_results_without_a_card_beside_them_say_nothing_of_the_workload(tmp_path: Path) -> None:
    found = load_results(str(stored(tmp_path, CARD)), [])
    assert (found.fields, list(found.results)) == ({}, [STEP])


def compared(before: float, after: float, limit: str, *seq_lens: int) -> Comparison:
    """Return ten equal steps against ten others, and cards that say the length of sequences."""
    sides = [
        RunResults(name, {STEP: mean_of(*[value] * 10)}, {"data.seq_len": seq_len})
        for name, value, seq_len in zip(("one", "other"), (before, after), seq_lens, strict=True)
    ]
    return compare_runs(sides, [STEP], thresholds=[parse_threshold(limit, lambda name: name)])


def test_the_exit_status_says_that_a_threshold_is_crossed_or_that_runs_do_not_compare() -> None:
    assert compared(1.0, 1.1, f"{STEP}:5%", 4096, 4096).exit_status == CROSSED == 5
    assert compared(1.0, 1.02, f"{STEP}:5%", 4096, 4096).exit_status == 0
    assert compared(1.0, 1.02, "mfu:5%", 4096, 4096).exit_status == NOT_JUDGED == 3
    apart = compared(1.0, 1.02, f"{STEP}:5%", 4096, 8192)
    assert (apart.exit_status, apart.pairs[0].comparability.verdict) == (3, "not comparable")
    assert apart.pairs[0].attribution is None


def test_one_run_of_several_that_does_not_compare_is_enough() -> None:
    sides = [
        RunResults(str(seq_len), {STEP: mean_of(1.0, 1.0)}, {"data.seq_len": seq_len})
        for seq_len in (4096, 4096, 8192)
    ]
    assert compare_runs(sides[:2], [STEP]).exit_status == 0
    assert compare_runs(sides, [STEP]).exit_status == NOT_JUDGED


def test_traces_count_and_not_the_results_stored_beside_them(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "kineto_trace_0.json").write_text('{"traceEvents": [], "distributedInfo": {"rank": 0}}')
    assert load_results(str(tmp_path), [], jobs=1).results == {}
    assert list(load_results(str(tmp_path / RESULTS), []).results) == [STEP]


@pytest.mark.parametrize(
    ("details", "samples"),
    [
        ({"per_step_s": {"1": 2, "2": 3.5}}, [2, 3.5]),
        ({"values_s": [1.0, 2.0]}, [1.0, 2.0]),
        ({"per_step_s": {"1": 2.0, "2": None}}, []),
        ({"per_step_s": {"1": {"compute": 1.0}}, "values_s": [4.0]}, [4.0]),
        ({"per_step_s": {}, "values_s": [4.0]}, [4.0]),
        ({"per_rank_s": {"0": 1.0}, "per_step_s": [1.0], "values_s": {"1": 1.0}}, []),
    ],
)
def test_samples_are_lists_of_numbers_alone(details: dict[str, object], samples: list[float]) -> None:
    assert samples_of(result(1.0, details=details)) == samples


@pytest.mark.parametrize(
    ("unit", "detail", "factor"),
    [("ratio", "pct", 0.01), ("%", "ratio", 100), ("ratio", "ratio", 1), ("%", "pct", 1), ("s", "pct", 1)],
)
def test_samples_are_in_the_unit_of_the_metric(unit: str, detail: str, factor: float) -> None:
    own = result(1.0, unit=unit, details={"per_step_s": {}, f"per_step_{detail}": {"1": 3.0, "2": 5.0}})
    assert samples_of(own) == pytest.approx([3 * factor, 5 * factor])


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ("trace card", True),
        ("trace other", True),
        ("other card", True),
        ("other other", False),
        ("- -", False),
    ],
)
def test_runs_are_of_the_same_work_by_their_traces_or_their_statements(other: str, is_same: bool) -> None:
    def run(text: str) -> RunResults:
        trace, card = text.split()
        traces = [] if trace == "-" else [TraceProvenance("t.json", trace, 1, "kineto", 1)]
        files = {"log.csv": "same"} | ({} if card == "-" else {"workload_card.yaml": card})
        own = replace(result(1.0), provenance=Provenance("1", 1, traces=traces, files=files))
        return RunResults("one", {"m": own})

    assert is_same_work(run(other), run("- -" if other == "- -" else "trace card")) is is_same
