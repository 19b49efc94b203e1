"""`ccl-bench report`: forms, files, pictures, and what it refuses."""

from __future__ import annotations

import json
import pty
import shutil
import sys
from cProfile import Profile
from os import close
from pathlib import Path
from subprocess import PIPE, Popen
from xml.etree import ElementTree as ET

import pytest

from ccl_bench.cli.bench import main
from ccl_bench.report.page import report_page
from ccl_bench.result.report_data import ReportData, from_json

MOST_CALLS = 1_000_000
"""Calls of functions of a report of two ranks from cached tables, which no other process adds to."""

Captured = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("shared_cache")


def test_a_file_gets_the_form_that_its_name_asks_for(
    one_rank: Path, tmp_path: Path, capsys: Captured
) -> None:
    starts = {"a.html": "<!DOCTYPE html>", "b.md": "# llama-tiny", "c.txt": "CCL-Bench report: llama-tiny"}
    for name, start in starts.items():
        assert main(["report", str(one_rank), "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert main(["report", str(one_rank), "-o", str(tmp_path / "odd.name"), "--format", "json"]) == 0
    assert from_json((tmp_path / "odd.name").read_bytes()).inspection.model == "llama-tiny"
    written = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(tmp_path))]
    assert [line.partition("  ")[0] for line in written] == [
        str(tmp_path / name) for name in (*starts, "odd.name")
    ]
    assert written[0].endswith("  opens in a browser")


def test_json_on_stdout_holds_what_the_page_is_made_of(one_rank: Path, capsys: Captured) -> None:
    assert main(["report", str(one_rank), "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert set(json.loads(out)) == {
        "inspection", "results", "series", "diagnosed", "schema_version",
    }  # fmt: skip
    assert report_page(from_json(out.encode())).title == "llama-tiny"


def test_dimensions_of_execution_traces_have_bytes_and_no_time(corpus: Path, capsys: Captured) -> None:
    assert main(["report", str(corpus / "execution_trace/gloo-fsdp2-tp2-args"), "--format", "text"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["tp", "24", "6.29", "MB", "51.63", "%", "unknown"] in lines
    assert ["dp_shard", "14", "5.89", "MB", "48.37", "%", "unknown"] in lines


def test_every_chart_becomes_a_picture(
    example: Path, observed: ReportData, tmp_path: Path, capsys: Captured
) -> None:
    arguments = ["report", str(example), "--charts", str(tmp_path / "charts"), "--chart-format", "svg"]
    assert main(arguments) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    page = report_page(observed)
    assert [path.name for path in written] == [f"{chart.key}.svg" for chart in page.charts()]
    for path, chart in zip(written, page.charts(), strict=True):
        text = path.read_text(encoding="utf-8")
        assert "var(--" not in text
        assert chart.title in "".join(ET.fromstring(text).itertext())
    assert main(arguments) == 0
    path.write_text("mine", encoding="utf-8")
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err


def test_a_chart_becomes_a_bitmap(one_rank: Path, tmp_path: Path, capsys: Captured) -> None:
    arguments = ["report", str(one_rank), "--charts", str(tmp_path / "charts"), "--chart-format", "png"]
    assert main(arguments) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert "time-parts.png" in {path.name for path in written}
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n") for path in written)


def test_a_run_without_anything_to_draw_is_reported(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "workload_card.yaml").write_text("model_family: nothing\n", encoding="utf-8")
    (tmp_path / "rank0_trace.json").write_text('{"traceEvents": []}', encoding="utf-8")
    assert main(["report", str(tmp_path), "--charts", str(tmp_path / "charts")]) == 3
    assert "nothing to draw" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "report.pdf"], "end it in .html"),
        (["--format", "pdf"], "--format"),
    ],
)
def test_a_form_that_cannot_be_is_refused_before_any_trace_is_read(
    arguments: list[str], said: str, example: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl_bench.run.open_run", lambda *_, **__: pytest.fail("the run was opened"))
    assert main(["report", str(example), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_report_from_cached_tables_parses_nothing_and_is_little_work(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for rank in range(2):
        shutil.copy(corpus / "kineto" / "megatron-tp8" / f"megatron_kineto_{rank}.json.gz", run)
    command = ["report", str(run), "--jobs", "1", "-o"]
    assert main([*command, str(tmp_path / "first.html")]) == 0
    monkeypatch.setattr("ccl_bench.trace.cache._read", lambda *_: pytest.fail("a trace was parsed"))
    with Profile(builtins=False) as profile:
        assert main([*command, str(tmp_path / "again.html")]) == 0
    assert sum(each.callcount for each in profile.getstats()) < MOST_CALLS, sum(
        each.callcount for each in profile.getstats()
    )


def test_html_is_nothing_for_a_terminal_and_something_for_a_pipe(one_rank: Path, capsys: Captured) -> None:
    command = [str(Path(sys.executable).parent / "ccl-bench"), "report", str(one_rank), "--format", "html"]
    terminal, other = pty.openpty()
    with Popen(command, stdout=other, stderr=PIPE, text=True) as process:
        _, err = process.communicate(timeout=300)
    close(other)
    close(terminal)
    assert process.returncode == 2
    assert "give -o report.html" in err
    assert main(["report", str(one_rank), "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>")
