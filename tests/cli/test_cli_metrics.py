"""`ccl-metrics`: what it prints where, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING

import pytest

from ccl_bench.cli.metrics import main
from ccl_bench.metrics import load
from ccl_bench.result import json_schema

if TYPE_CHECKING:
    from pathlib import Path

OK, WRONG_USAGE, NO_VALUE, NO_INPUT = 0, 2, 3, 4


def test_one_metric_is_the_number_alone(sharded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(sharded), "--metric", "coll_call_num"]) == OK
    assert capsys.readouterr() == ("16\n", "")


def test_the_run_is_named_with_or_without_an_option(
    sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([str(sharded), "-m", "coll_call_num"], ["-m", "coll_call_num", str(sharded)]):
        assert main(words) == OK
        assert capsys.readouterr() == ("16\n", "")
    assert main([str(sharded), "--trace", str(sharded), "-m", "coll_call_num"]) == WRONG_USAGE
    assert "2 runs are given" in capsys.readouterr().err


def test_choices_are_read_in_any_case(sharded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = [str(sharded), "-m", "coll_call_num", "--profile-mode", "TORCH", "-f"]
    assert main([*named, "VALUE"]) == OK
    assert capsys.readouterr() == ("16\n", "")
    assert main([*named, "XML"]) == WRONG_USAGE
    assert 'invalid value "XML" for -f' in capsys.readouterr().err


def test_a_number_reads_back_as_the_same_float(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--trace", str(small), "--metric", "gpu_busy"])
    printed = capsys.readouterr().out
    main(["--trace", str(small), "--metric", "gpu_busy", "--format", "json"])
    assert float(printed) == json.loads(capsys.readouterr().out)[0]["value"]
    assert "." in printed


def test_an_equals_sign_may_stand_between_option_and_value(
    sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--trace={sharded}", "--metric=coll_call_num"]) == OK
    assert capsys.readouterr().out == "16\n"


def test_an_alias_gives_the_same_number(sharded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["-t", str(sharded), "-m", "coll_call_num_16"])
    assert capsys.readouterr().out == "16\n"


def test_several_metrics_are_a_table_with_a_row_each(
    sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-t", str(sharded), "-m", "coll_call_num", "-m", "mfu"]) == OK
    out, err = capsys.readouterr()
    header, first, second = out.splitlines()
    assert header.split() == ["METRIC", "VALUE", "UNIT", "STATUS"]
    assert first.split() == ["coll_call_num", "16", "calls", "ok"]
    assert second.startswith("mfu ")
    assert "not applicable: the run names no accelerator" in second
    assert err.startswith("ccl-metrics: mfu: fix: ")


def test_several_metrics_as_values_have_their_names(
    sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-t", str(sharded), "-m", "coll_call_num", "-m", "mfu", "-f", "value"]) == OK
    out, err = capsys.readouterr()
    assert out == "coll_call_num 16\n"
    assert err.startswith("ccl-metrics: mfu: not applicable: ")


def test_all_lists_every_metric_those_with_a_value_first(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-t", str(small), "--all", "--why"]) == OK
    valued, missing = capsys.readouterr().out.split("\nNo value for\n")
    with_value = [row.split()[0] for row in valued.splitlines()[1:]]
    without = [name for row in missing.splitlines() for name in row.partition(":")[0].strip().split(", ")]
    assert sorted([*with_value, *without]) == sorted(load().names())


def test_metrics_for_other_kinds_of_runs_are_counted_and_those_that_a_fact_would_give_are_listed(
    sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-t", str(sharded), "--all"]) == OK
    out, err = capsys.readouterr()
    valued, missing = out.split("\nNo value for\n")
    measured = len(valued.splitlines()) - 1
    listed = [name for row in missing.splitlines() for name in row.partition(":")[0].strip().split(", ")]
    others = len(load().names()) - measured - len(listed)
    assert "  mfu: not applicable: the run names no accelerator" in missing
    assert not {"TTFT", "peak_memory_allocated", "bubble_size_pipeline"} & {*listed}
    counts = f"{measured} measured, {others} for other kinds of runs (--why lists them): "
    first = err.splitlines()[0]
    assert first.startswith(f"ccl-metrics: {counts}")
    assert sum(map(int, re.findall(r"(\d+) (?:because|for other reasons)", first))) == others
    assert main(["-t", str(sharded), "-m", "TTFT", "-m", "coll_call_num"]) == OK
    assert "TTFT" in capsys.readouterr().out


def test_a_metric_that_does_not_apply_says_why_on_stderr(
    sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-t", str(sharded), "-m", "mfu"]) == NO_VALUE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ccl-metrics: mfu: not applicable: the run names no accelerator")
    assert "\n  fix: " in err


def test_json_fits_its_schema(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import jsonschema

    assert main(["-t", str(small), "--all", "-f", "json"]) == OK
    results = json.loads(capsys.readouterr().out)
    jsonschema.validate(results, json_schema())
    assert {result["status"] for result in results} >= {"ok", "not_applicable"}


def test_csv_has_a_header_and_the_reason_of_a_missing_value(
    sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["-t", str(sharded), "-m", "coll_call_num", "-m", "mfu", "-f", "csv"])
    calls, mfu = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (calls["value"], calls["unit"], calls["status"], calls["ranks"]) == (
        "16",
        "calls",
        "ok",
        "0 1 2 3",
    )
    assert (mfu["value"], mfu["status"]) == ("", "not_applicable")
    assert mfu["reason"]
    assert mfu["fix"]


def test_a_finding_that_touches_the_number_is_reported_on_stderr(
    sharded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("kineto_trace_0.json.gz", "kineto_trace_1.json.gz", "run_metadata.json"):
        (tmp_path / name).write_bytes((sharded / name).read_bytes())
    assert main(["-t", str(tmp_path), "-m", "coll_call_num"]) == OK
    out, err = capsys.readouterr()
    assert out == "16\n"
    assert err == "ccl-metrics: warning: 2 of 4 ranks have no trace: 2, 3 (ranks-missing)\n"


def test_a_trace_of_which_nothing_can_be_read_is_unreadable_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = b'{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [\n'
    (tmp_path / "rank0_trace.json").write_bytes(head + b"\x00\xff\xfe not an event")
    status = main(["-t", str(tmp_path), "-m", "gpu_busy"])
    out, err = capsys.readouterr()
    assert status in {NO_VALUE, NO_INPUT}
    assert out == ""
    assert "Traceback" not in err


def test_a_card_that_is_named_must_be_there(sharded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-t", str(sharded), "-m", "mfu", "--workload-card", "no.yaml"]) == NO_INPUT
    assert "no.yaml" in capsys.readouterr().err


SIXTEEN = {
    "coll_call_num_16",
    "comm_comp_overlap_16",
    "iter_time_16",
    "pipeline_bubble_16",
    "straggler_lag_16",
    "throughput_tokens_16",
    "traffic_distribution_16",
    "training_quality_16",
}


def test_the_list_of_metrics_has_a_row_for_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-metrics"]) == OK
    rows = capsys.readouterr().out.splitlines()[1:]
    listed = [row.split()[0] for row in rows]
    assert listed == sorted({*load().names(), *load().aliases()})
    assert set(listed) >= SIXTEEN
    (alias,) = [row for row in rows if row.startswith("iter_time_16 ")]
    assert alias.endswith("Same as iteration_wall_clock_time.")


@pytest.mark.parametrize(("asked", "name"), [("Coll_Call_Num", "coll_call_num"), ("ttft", "TTFT")])
def test_a_name_is_found_in_any_case(
    asked: str, name: str, sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["-t", str(sharded), "-m", asked, "-f", "csv"])
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{name},")


def test_the_list_of_metrics_is_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list-metrics", "-f", "value"])
    assert capsys.readouterr().out.split() == sorted({*load().names(), *load().aliases()})
    main(["--list-metrics", "-f", "json"])
    listed = json.loads(capsys.readouterr().out)
    assert next(entry for entry in listed if entry["metric"] == "sm")["unit"] == "%"
    main(["--list-metrics", "-f", "csv"])
    assert capsys.readouterr().out.startswith("metric,unit,better,aliases,summary\n")


@pytest.mark.parametrize("name", ["mfu", "coll_call_num_16", "comm_comp_overlap_16"])
def test_explain_shows_the_manual_of_a_metric_alias_or_variant(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--explain", name]) == OK
    page = capsys.readouterr().out
    metric = load().get(name)
    assert page.startswith(f"{metric.name}\n")
    assert metric.unit in page
    assert "Formula:" in page


@pytest.mark.parametrize("name", ["megatron-tp8", "deepseek-dualpipe", "nccl-args"])
def test_real_traces_give_every_number_or_a_reason(
    kineto: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-t", str(kineto / name), "--all", "-f", "json"]) == OK
    results = json.loads(capsys.readouterr().out)
    assert [r["metric"] for r in results if r["status"] == "failed"] == []
    assert [r["metric"] for r in results if r["value"] is None and not r["reason"]] == []
