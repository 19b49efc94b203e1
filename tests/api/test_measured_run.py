"""`ccl_bench.open`: a run is opened once, asked for everything, and each answer is that of the commands."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import polars as pl
import pytest
from commands import EXAMPLE, ROOT, invoke, recorded_by
from plain_json import document

import ccl_bench as ccl
from ccl_bench.base.errors import InputError, NotMeasurable, UsageError

if TYPE_CHECKING:
    from pathlib import Path

STEP = "4"
"""One of the steps of the example."""

UNITS = {
    ("kernels", "start_ns"): "ns",
    ("kernels", "rank"): "",
    ("kernels", "blocks_per_sm"): "",
    ("kernels", "occupancy_pct"): "%",
    ("kernels", "name"): "",
    ("memcpy", "bytes"): "bytes",
    ("collectives", "in_elements"): "",
}

GPUS = ROOT / "examples" / "runs" / "megatron-tp8-a100"

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(scope="module")
def run() -> ccl.MeasuredRun:
    return ccl.open(EXAMPLE)


@pytest.fixture(scope="module")
def gpus() -> ccl.MeasuredRun:
    return ccl.open(GPUS)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> ccl.MeasuredRun:
    """Return half of the example, for what takes every number of a run."""
    return ccl.open(recorded_by((0, 1), tmp_path_factory.mktemp("two ranks") / "run"))


def test_the_module_shows_its_names_and_loads_nothing_before_they_are_used() -> None:
    code = (
        "import sys, ccl_bench as ccl; before = len(sys.modules); "
        "assert {'open', 'compare', 'MeasuredRun'} <= set(dir(ccl)); "
        "assert 'polars' not in sys.modules and 'ccl_bench.api' not in sys.modules; "
        "ccl.open; assert 'ccl_bench.api' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_opening_reads_no_trace(run: ccl.MeasuredRun) -> None:
    assert run.ranks == [0, 1, 2, 3]
    assert len(run.traces) == 4
    assert run.facts.tp is not None and run.facts.tp.value == 2
    assert repr(run) == f"<MeasuredRun {EXAMPLE}: 4 traces, 4 ranks>"


def test_kernels_of_all_ranks_are_those_of_the_files(gpus: ccl.MeasuredRun) -> None:
    kernels = gpus.table("kernels")
    for rank in range(8):
        plain = document(GPUS / f"megatron_kineto_{rank}.json.gz")["traceEvents"]
        names = Counter(each["name"] for each in plain if each.get("cat") == "kernel")
        mine = kernels.filter(pl.col("rank") == rank)["name"].cast(pl.String)
        assert Counter(mine) == names
    assert [*kernels.columns] == [*gpus.tables["kernels"].columns]


def test_a_table_of_some_ranks_is_those_rows(gpus: ccl.MeasuredRun) -> None:
    for name in ("kernels", "breakdown"):
        whole = gpus.table(name)
        assert gpus.table(name, ranks=[2, 5]).equals(whole.filter(pl.col("rank").is_in([2, 5])))
    with pytest.raises(UsageError, match="no trace of rank 9"):
        gpus.table("kernels", ranks=[0, 9])


def test_a_file_knows_its_rank_better_than_its_name(tmp_path: Path) -> None:
    plain = ROOT / "examples" / "runs" / "llama-tiny-pp4-gloo"
    swapped = tmp_path / "swapped"
    swapped.mkdir()
    for rank, other in ((0, 3), (3, 0)):
        trace = json.loads(gzip.decompress((plain / f"kineto_trace_{rank}.json.gz").read_bytes()))
        trace["distributedInfo"] = trace.pop(
            "distributedInfo"
        )  # at the end, where only a whole reading finds it
        (swapped / f"kineto_trace_{other}.json").write_text(json.dumps(trace))
    run = ccl.open(swapped)
    for rank in (0, 3):
        events = document(plain / f"kineto_trace_{rank}.json.gz")["traceEvents"]
        recorded = sum(each.get("cat") == "cpu_op" and each["ph"] == "X" for each in events)
        found = run.table("cpu_ops", ranks=[rank])
        assert found.height == recorded
        assert found["trace"].unique().to_list() == [int(rank == 0)]


def test_tables_are_of_chosen_steps() -> None:
    run = ccl.open(EXAMPLE, steps=STEP)
    operators = run.table("cpu_ops")
    for rank in range(4):
        plain = document(EXAMPLE / f"kineto_trace_{rank}.json.gz")["traceEvents"]
        [step] = [each for each in plain if each["name"] == f"ProfilerStep#{STEP}"]
        first, last = step["ts"], step["ts"] + step["dur"]
        begun = [e for e in plain if e.get("cat") == "cpu_op" and e["ph"] == "X" and first <= e["ts"] < last]
        assert operators.filter(pl.col("rank") == rank).height == len(begun)
    assert run.table("steps")["step"].unique().to_list() == [int(STEP)]


def test_tables_state_their_units(run: ccl.MeasuredRun) -> None:
    units = {(table, column): run.tables[table].unit(column) for table, column in UNITS}
    assert units == UNITS


def test_an_unknown_table_is_refused_with_the_nearest(run: ccl.MeasuredRun) -> None:
    with pytest.raises(UsageError) as refused:
        run.table("kernel")
    assert "did you mean kernels" in str(refused.value)
    with pytest.raises(NotMeasurable, match="no trace of the run fills"):
        run.table("requests")


def test_metrics_are_those_of_the_command(run: ccl.MeasuredRun) -> None:
    frame = run.metrics().sort("metric")
    printed = json.loads(invoke(["ccl-metrics", "--trace", str(EXAMPLE), "--all", "-f", "json"]).stdout)
    assert frame["metric"].to_list() == [each["metric"] for each in printed]
    assert frame["value"].to_list() == [each["value"] for each in printed]
    assert run.metric("MFU").metric == "mfu"
    assert run.metrics("coll_call_num").item(0, "value") == 16
    with pytest.raises(UsageError):
        run.metric("speed")


def test_verdict_diagnoses_and_inspection_are_those_of_the_commands(gpus: ccl.MeasuredRun) -> None:
    printed = json.loads(invoke(["ccl-bench", "diagnose", str(GPUS), "-f", "json"]).stdout)
    assert gpus.verdict().step_s == printed["verdict"]["step_s"]
    assert [each.name for each in gpus.diagnose().diagnoses] == [
        each["name"] for each in printed["diagnoses"]
    ]
    assert gpus.inspect().world_size == 8
    assert gpus.findings == gpus.inspect().issues


def test_the_critical_path_of_the_only_step_is_the_mean(gpus: ccl.MeasuredRun) -> None:
    [step] = gpus.replays.steps
    assert gpus.critical_path(step) == gpus.critical_path()
    with pytest.raises(UsageError, match="no step 77"):
        gpus.critical_path(77)


def test_critical_paths_of_steps_have_the_mean_of_all(run: ccl.MeasuredRun) -> None:
    each = [run.critical_path(step) for step in run.replays.steps]
    assert len(each) == 3
    mean = sum(path.length_s for path in each) / 3
    assert run.critical_path().length_s == pytest.approx(mean, rel=1e-12)
    assert len({path.length_s for path in each}) == 3


def test_one_scenario_may_be_a_text(gpus: ccl.MeasuredRun) -> None:
    one, two = gpus.what_if(without="rank:0"), gpus.what_if(without=["rank:0", "rank:6"])
    assert [each.name for each in one.scenarios] == ["without rank:0"]
    assert two.scenarios[0] == one.scenarios[0]


def test_pages_are_written(two_ranks: ccl.MeasuredRun, tmp_path: Path) -> None:
    page = two_ranks.report(tmp_path / "report.html")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    written = two_ranks.timeline(tmp_path / "timeline.json")
    assert json.loads(written.path.read_text())["traceEvents"]
    with pytest.raises(UsageError, match="does not state the form"):
        two_ranks.report(tmp_path / "report.pdf")


def test_what_is_shown_in_a_notebook_escapes_names_from_traces(tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>"
    hostile.mkdir()
    (hostile / "rank0.json").write_text('{"traceEvents": []}')
    (hostile / "step_times.json").write_text("[0.1, 0.1]")
    shown = ccl.open(hostile)
    for html in (shown.inspect()._repr_html_(), shown.diagnose()._repr_html_(), shown._repr_html_()):
        assert "<img" not in html
        assert "&lt;img" in html


def test_answers_show_themselves(gpus: ccl.MeasuredRun) -> None:
    assert "634 ms a step on 8 x NVIDIA A100" in gpus.verdict()._repr_html_()
    assert "189.88" in gpus.metric("bandwidth_utilization_allreduce")._repr_html_()
    assert "not measurable" in gpus.metric("TTFT")._repr_html_()
    assert "without rank:0" in gpus.what_if(without="rank:0")._repr_html_()
    assert "on the path" in gpus.critical_path()._repr_html_()


def test_a_chart_is_a_specification_a_picture_and_an_altair_object(
    two_ranks: ccl.MeasuredRun, tmp_path: Path
) -> None:
    altair = pytest.importorskip("altair")
    chart = two_ranks.chart("time-parts")
    forms = chart._repr_mimebundle_()
    assert forms["image/svg+xml"].startswith("<svg")
    assert forms["application/vnd.vegalite.v5+json"] == chart.spec
    assert "var(--" not in json.dumps(chart.spec)
    assert isinstance(chart.to_altair(), altair.TopLevelMixin)
    assert chart.save(tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(chart.save(tmp_path / "chart.json").read_text()) == chart.spec
    with pytest.raises(UsageError, match="did you mean"):
        two_ranks.chart("time-part")
    with pytest.raises(UsageError, match=r"end it in \.svg, \.png, \.json"):
        chart.save(tmp_path / "chart.pdf")


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(InputError):
        ccl.open("/no/such/run")
    with pytest.raises(UsageError):
        ccl.open(EXAMPLE, steps="5-3")


def test_a_run_that_is_open_compares_as_the_command_does(run: ccl.MeasuredRun, tmp_path: Path) -> None:
    other = ROOT / "examples" / "runs" / "llama-tiny-pp4-gloo"
    compared = ccl.compare(run, other)
    done = invoke(["ccl-bench", "compare", str(EXAMPLE), str(other), "-f", "json"])
    assert json.loads(compared.written("json")) == json.loads(done.stdout)
    changes = compared.changes()
    [step] = changes.filter(pl.col("metric") == "iteration_wall_clock_time").rows(named=True)
    assert step["baseline"] == run.metric("iteration_wall_clock_time").value
    assert "not comparable" in compared._repr_html_()
    assert compared.report(tmp_path / "both.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(UsageError, match="at least two runs"):
        ccl.compare(run)


def test_answers_print_as_the_commands_do(gpus: ccl.MeasuredRun) -> None:
    [sentence] = str(gpus.verdict()).splitlines()
    assert " a step on 8 x NVIDIA A100" in sentence
    diagnosed = gpus.diagnose()
    assert [*diagnosed] == diagnosed.diagnoses
    assert len(diagnosed) == len(diagnosed.diagnoses) > 0
    assert sentence in " ".join(str(diagnosed).split())
    assert diagnosed.diagnoses[0].title in " ".join(str(diagnosed).split())


def test_repr_shows_four_digits_and_the_answer_has_all(gpus: ccl.MeasuredRun) -> None:
    result = gpus.metric("bandwidth_utilization_allreduce")
    assert result.value is not None
    assert f"value={result.value:.4g}," in repr(result)
    assert repr(result.value) not in repr(result)
    assert f"step_s={gpus.verdict().step_s:.4g}" in repr(gpus.verdict())
    # No empty field, and of a long list the first elements.
    assert "reason" not in repr(result)
    assert "…" in repr(ccl.Result("x", "ok", "s", "lower", details={"many": [*range(9)]}))
    assert "7, …]" in repr(ccl.Result("x", "ok", "s", "lower", details={"many": [*range(9)]}))
    assert "7]" in repr(ccl.Result("x", "ok", "s", "lower", details={"many": [*range(8)]}))


def test_metrics_with_a_value_come_first(two_ranks: ccl.MeasuredRun) -> None:
    frame, measured = two_ranks.metrics(), two_ranks.metrics(measured=True)
    have_value = frame["value"].is_not_null().to_list()
    assert have_value == sorted(have_value, reverse=True)
    assert 0 < measured.height < frame.height
    assert frame.head(measured.height).equals(measured)
    assert two_ranks.metrics("mfu", "coll_call_num")["metric"].to_list() == ["mfu", "coll_call_num"]
    assert two_ranks.metrics("mfu", "coll_call_num", measured=True)["metric"].to_list() == ["coll_call_num"]
