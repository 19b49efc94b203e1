"""The verdict: where a step goes, against times by hand, an independent count, and the metrics."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from commands import invoke
from injected import CASES, SHARDED, STALLED, diagnosed, diagnosed_case, step_s
from local_traces import kernel, launch, note, step, write

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.diagnosis.diagnose import diagnose, observe_run
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.report.formatting import duration
from ccl_bench.report.page import report_page
from ccl_bench.report.page_model import Quantity
from ccl_bench.report.render.html import run_page
from ccl_bench.report.render.markdown import markdown
from ccl_bench.report.render.text import text
from ccl_bench.result.report_data import from_json, to_json
from ccl_bench.run import open_run
from ccl_bench.testing import Straggler, timeline, write_run
from ccl_bench.testing.plans import two_ranks

if TYPE_CHECKING:
    from local_traces import Event

    from ccl_bench.result.diagnosis import Diagnosed
    from ccl_bench.testing import Plan

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(scope="module")
def late_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run in which the host of rank 2 is late by 2 of 4 ms."""
    folder = tmp_path_factory.mktemp("runs") / "late host"
    write_run(replace(SHARDED, stragglers=(Straggler(2, host_ns=2_000_000),)), folder)
    return folder


def test_a_step_by_hand(tmp_path: Path) -> None:
    """Gathered twice for 0.1 ms, reduced for 0.2 ms, computed for 0.4 + 0.6 + 0.05 ms, nothing hidden."""
    found = diagnosed(two_ranks(), tmp_path).verdict
    assert found is not None
    assert found.step_s == pytest.approx(0.00145)
    assert found.parts["compute"] == pytest.approx(1.05 / 1.45)
    assert found.parts["transfer"] == pytest.approx(0.4 / 1.45)
    assert sum(found.parts.values()) == pytest.approx(1)
    assert (found.ranks, found.steps, found.devices) == (2, 2, "2 x NVIDIA A100-SXM4-80GB")


def test_waiting_is_what_the_plan_makes_ranks_wait(tmp_path: Path) -> None:
    plan = replace(SHARDED, stragglers=(Straggler(2, host_ns=2_000_000),))
    found = diagnosed(plan, tmp_path).verdict
    assert found is not None
    assert found.parts == pytest.approx(_painted(plan), abs=1e-6)
    assert found.parts["waiting"] > 0.2


def _painted(plan: Plan) -> dict[str, float]:
    """Return the parts of the mean step, by painting each ten nanoseconds of each rank's steps."""
    made = timeline(plan)
    sums = dict.fromkeys(("compute", "waiting", "transfer", "copies", "idle"), 0)
    for records in made.steps:
        come: dict[tuple[str, object], int] = {}
        for rank, record in enumerate(records):
            for item, start in zip(made.program(rank).instructions, record.starts, strict=True):
                if item.call is not None:
                    key = (item.call.dimension, item.call.match)
                    come[key] = max(come.get(key, 0), start)
        for rank, record in enumerate(records):
            canvas = np.zeros((record.host_end_ns - record.host_start_ns) // 10, dtype=np.int8)
            spans: list[tuple[int, int, int]] = []
            for item, start, end in zip(
                made.program(rank).instructions, record.starts, record.ends, strict=True
            ):
                if item.call is not None:
                    last = come[item.call.dimension, item.call.match]
                    spans += [(2, start, last), (3, last, end)]
                else:
                    spans.append((1 if item.phase == "copy" else 4, start, end))
            for colour, start, end in sorted(spans):
                first, until = ((at - record.host_start_ns) // 10 for at in (start, end))
                canvas[first:until] = colour
            counts = np.bincount(canvas, minlength=5)
            for part, colour in (("idle", 0), ("copies", 1), ("waiting", 2), ("transfer", 3), ("compute", 4)):
                sums[part] += int(counts[colour])
    return {part: count / sum(sums.values()) for part, count in sums.items()}


def test_idle_time_adds_up_from_what_the_host_did_and_what_is_unknown(tmp_path: Path) -> None:
    """Two steps of 2 ms; work runs from 0.1 to 0.5 ms, and to the end of the step from 1.9 ms.

    The second piece of the first step is launched at 0.2 ms, and waits for 1.4 ms for what is not recorded;
    that of the second step is launched at 1.89 ms, after an evaluation.
    """
    events: list[Event] = [note("evaluation", 2_250, 3_880)]
    for number, second in enumerate((200, 1_889)):
        at = 2_000 * number
        events += [
            step(number, at, at + 2_000),
            launch(10 + number, at + 90, at + 99), kernel("a", 10 + number, at + 100, at + 500),
            launch(20 + number, at + second, at + second + 1),
            kernel("b", 20 + number, at + 1_900, at + 2_000),
        ]  # fmt: skip
    found = diagnose(open_run(write(tmp_path, events)), jobs=1, use_cache=False).verdict
    assert found is not None
    assert found.parts["idle"] == pytest.approx(3_000 / 4_000)
    shares = {(part.cause, part.name): part.share * 4_000 for part in found.idle}
    assert shares == pytest.approx({
        ("unknown", None): 1_400,
        ("named range", "evaluation"): 1_389,  # from 2,500 to 3,889
        ("unnamed pause", None): 90,  # the end of one that begins at 201, while work is queued
        ("launching", None): 90 + 9 + 9 + 1,  # up to the first call, and in three calls
        ("between queued work", None): 1 + 1 + 10,
    })  # fmt: skip


def test_who_waits_for_whom_is_found_with_the_gain(tmp_path: Path) -> None:
    """Of four equal ranks rank 2 is late by 2 ms; the others wait alike, of which the first is named."""
    found = diagnosed(
        replace(SHARDED, stragglers=(Straggler(2, host_ns=2_000_000),)), tmp_path / "late"
    ).waiting
    assert found is not None
    assert (found.latest, found.longest) == ([2], [0])
    assert found.gain_of_latest_s == pytest.approx(0.002)
    assert found.gain_of_all_s == pytest.approx(0.002)
    assert diagnosed(SHARDED, tmp_path / "healthy").waiting is None
    assert diagnosed(replace(SHARDED, dp_shard=1), tmp_path / "alone").waiting is None


CORPUS = os.environ.get("CCL_BENCH_CORPUS")
ALONE = "nccl-args"
"""One of two ranks: nothing shows what its calls waited."""
RECORDED = [EXAMPLE, *([Path(CORPUS) / "kineto" / run for run in ("megatron-tp8", ALONE)] if CORPUS else [])]


@cache
def diagnosed_run(run: Path) -> Diagnosed:
    """Return the diagnoses of a run that nobody changes."""
    return diagnose(open_run(run), jobs=1)


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: run.name)
def test_the_parts_are_those_of_the_metrics(run: Path) -> None:
    found = diagnosed_run(run).verdict
    assert found is not None
    names = ("gpu_busy", "exposed_communication_time", "iteration_wall_clock_time")
    busy, exposed, step = evaluate(open_run(run), names, jobs=1)
    assert step.value == found.step_s
    if busy.value is not None:
        assert 100 * (1 - found.parts["idle"]) == pytest.approx(busy.value, abs=0.01)
    assert (found.unattributed > 0.05) == (run.name == ALONE)
    if found.on_device:
        assert sum(part.share for part in found.idle) == pytest.approx(found.parts["idle"], abs=1e-6)
    share = 100 * (found.parts["waiting"] + found.parts["transfer"])
    assert share == pytest.approx(exposed.details["pct_of_step"], abs=0.01)


@pytest.mark.skipif(not CORPUS, reason="CCL_BENCH_CORPUS is not set")
def test_megatron_waits_for_more_than_half_of_its_step() -> None:
    """Kernel sums of its README: NCCL takes 241 to 495 ms of 626, of which the shortest is near transfer."""
    found = diagnosed_run(Path(str(CORPUS)) / "kineto" / "megatron-tp8")
    assert found.verdict is not None
    shown = {part: round(100 * share) for part, share in found.verdict.parts.items()}
    assert shown == {"compute": 21, "waiting": 59, "transfer": 8, "copies": 0, "idle": 12}
    assert [each.name for each in found.diagnoses] == ["host_pauses"]


def test_the_verdict_is_the_first_line_of_every_form(late_host: Path) -> None:
    """4 ms a step, of which 2 ms are lost to the host of rank 2."""
    sentence = "4.02 ms a step on 4 x NVIDIA A100-SXM4-80GB: 47 % compute, 37 % waiting for other ranks"
    observed = observe_run(open_run(late_host), jobs=1)
    page = report_page(observed)
    lines = text(page).splitlines()
    assert sentence in " ".join(lines[1:3])
    [waits] = [section for section in page.sections if section.key == "waiting"]
    assert waits.notes[-1].startswith("Ranks wait 37 % of the step for others. Rank 2 is latest: ")
    assert f"a step would be {duration(2e-3)} shorter" in waits.notes[-1]
    for written in (text(page), markdown(page), run_page(page)):
        first = written.replace("\n", " ").index(sentence[:60])
        assert first < written.index("Rank 2 comes late") < written.index("Data quality")
    assert "-2 ms (-50 %" in markdown(page).replace("\\", "")
    assert observed.diagnosed is not None
    assert observed.inspection.verdict == observed.diagnosed.verdict
    assert from_json(to_json(observed)) == observed


@pytest.mark.parametrize(
    ("case", "words", "name"),
    [
        ("data loader", "in data loading", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        ("pause without a name", "in pauses of hosts without a name", ""),
    ],
)
def test_a_report_shows_what_hosts_did_while_devices_were_idle(
    case: str, words: str, name: str, tmp_path: Path
) -> None:
    """Hosts launch nothing for 1.5 ms at the start of each step."""
    diagnosed_case(CASES[case], tmp_path)
    page = report_page(observe_run(open_run(tmp_path), jobs=1))
    [shown] = [
        table
        for section in page.sections
        for table in section.tables
        if table.caption == "What hosts did while devices were idle"
    ]
    shares = {row[0]: row[2].value for row in shown.rows if isinstance(row[2], Quantity)}
    assert shares["together"] == pytest.approx(100 * _painted(STALLED)["idle"], abs=1e-3)
    assert sum(shares.values()) == pytest.approx(2 * shares["together"])
    assert shares[words] == pytest.approx(100 * STALLED.host.gap_ns / 1e9 / step_s(STALLED), rel=0.01)
    assert shown.rows[0][:2] == (words, name)
    for written in (text(page), markdown(page), run_page(page)):
        assert "What hosts did while devices were idle" in written
        assert words in written


def test_an_inspection_begins_with_the_sentence(late_host: Path) -> None:
    assert (
        " ms a step on 4 x NVIDIA" in invoke(["ccl-bench", "inspect", str(late_host)]).stdout.splitlines()[1]
    )


def test_a_run_that_cannot_be_replayed_is_reported_with_the_reason(
    late_host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise NotMeasurable("half of the step is missing")

    monkeypatch.setattr("ccl_bench.whatif.run_graph.graph_of", broken)
    said = invoke(["ccl-bench", "report", str(late_host)]).stdout
    assert "No verdict: half of the step is missing." in said
    assert "Headline numbers" in said
