"""`ccl-bench report`, and what happens when one metric fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from commands import recorded_by

from ccl_bench import metrics
from ccl_bench.cli.bench import main
from ccl_bench.cli.metrics import main as ccl_metrics
from ccl_bench.metrics import Metric

if TYPE_CHECKING:
    from pathlib import Path

Captured = pytest.CaptureFixture[str]


def test_the_report_of_a_run_goes_to_a_file_that_is_not_overwritten_once_it_was_edited(
    small: Path, tmp_path: Path, capsys: Captured
) -> None:
    target = tmp_path / "one.txt"
    assert main(["report", str(small), "--format", "text", "-o", str(target)]) == 0
    *verdict, written = capsys.readouterr().out.splitlines()
    assert written == str(target)
    words = " ".join(target.read_text(encoding="utf-8").split())
    assert words.startswith("CCL-Bench report:")
    assert " a step on " in verdict[0]
    assert all(line.strip() in words for line in verdict)
    # Its own report is replaced, unless somebody edited it.
    assert main(["report", str(small), "--format", "text", "--output", str(target)]) == 0
    target.write_text(target.read_text(encoding="utf-8") + "mine\n", encoding="utf-8")
    capsys.readouterr()
    assert main(["report", str(small), "--format", "text", "--output", str(target)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["report", str(small), "--format", "text", "-o", str(target), "--force"]) == 0


def test_a_report_without_a_form_is_text_on_stdout(tmp_path: Path, capsys: Captured) -> None:
    assert main(["report", str(recorded_by((0,), tmp_path / "one"))]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("CCL-Bench report: llama-tiny\n")
    assert "\nBus bandwidth\n" in out
    assert err == ""


def test_a_report_reads_each_trace_once(
    small: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ccl_bench import engine

    read: list[int] = []
    run = engine.read_concatenated
    monkeypatch.setattr(
        engine,
        "read_concatenated",
        lambda tasks, *of, **how: read.append(len(tasks)) or run(tasks, *of, **how),
    )
    assert main(["report", str(small), "--format", "text"]) == 0
    assert main(["inspect", str(small)]) == 0
    assert read == [2, 2]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a metric that raises what no metric should."""

    def gpu_idle_squared(steps: object) -> None:
        raise ZeroDivisionError(f"no {type(steps).__name__} to divide")

    registry = metrics.load()
    made = Metric("gpu_idle_squared", "%", "lower", ("steps",), gpu_idle_squared)
    monkeypatch.setitem(registry._items, made.name, made)
    monkeypatch.setitem(registry._spellings, made.name, made.name)
    return made.name


def test_one_metric_that_fails_shows_its_traceback_and_ends_with_1(
    broken: str, small: Path, capsys: Captured
) -> None:
    assert ccl_metrics(["--trace", str(small), "--metric", broken]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"ccl-metrics: {broken}: failed: ZeroDivisionError: no DataFrame to divide" in err
    assert "Traceback (most recent call last)" in err
    assert "in gpu_idle_squared" in err


def test_among_others_a_metric_that_fails_leaves_them_alone(
    broken: str, small: Path, capsys: Captured
) -> None:
    assert ccl_metrics(["--trace", str(small), "--all", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    found = {result["metric"]: result for result in json.loads(out)}
    assert found[broken]["status"] == "failed"
    assert found[broken]["reason"] == "ZeroDivisionError: no DataFrame to divide"
    assert found["coll_call_num"]["status"] == "ok"
    assert "Traceback" not in err


def test_debug_shows_the_traceback_of_each_that_fails(broken: str, small: Path, capsys: Captured) -> None:
    arguments = ["--trace", str(small), "--metric", "gpu_busy", "--metric", broken, "--debug"]
    assert ccl_metrics(arguments) == 0
    assert "in gpu_idle_squared" in capsys.readouterr().err


def test_inspect_names_a_metric_that_fails(broken: str, small: Path, capsys: Captured) -> None:
    assert main(["inspect", str(small)]) == 0
    assert "failed: ZeroDivisionError: no DataFrame to divide" in capsys.readouterr().out


def test_a_table_across_ranks_that_fails_takes_only_what_rests_on_it_along(
    small: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from ccl_bench.analysis.derived import DERIVED

    def fails(*_: object) -> None:
        raise KeyError("nothing")

    DERIVED.load()
    monkeypatch.setitem(DERIVED._items, "waits", replace(DERIVED.get("waits"), compute=fails))
    assert ccl_metrics(["--trace", str(small), "--all", "--format", "json"]) == 0
    found = {result["metric"]: result for result in json.loads(capsys.readouterr().out)}
    assert {found[name]["status"] for name in ("straggler", "straggler_lag_16")} == {"failed"}
    assert found["traffic_distribution"]["status"] == "ok"
