"""`python tools/main.py RUN --config train.toml`: the text report as a file."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from tools.main import main

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 4
seq_len = 256

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
"""

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, sharded: Path) -> Path:
    """Return a folder with the traces alone, as torchtitan leaves them."""
    return _left(tmp_path_factory.mktemp("left"), sharded)


@pytest.fixture(scope="module")
def left_by_one(tmp_path_factory: pytest.TempPathFactory, sharded: Path) -> Path:
    """Return a folder with the trace of one rank, for tests that ask where a report is written."""
    return _left(tmp_path_factory.mktemp("one"), sharded, "kineto_trace_0.*")


@pytest.fixture
def of_one_rank(here: Path, left_by_one: Path) -> Path:
    """Return that folder, with the configuration in the working directory."""
    (here / "train.toml").write_text(CONFIG)
    return left_by_one


def _left(folder: Path, sharded: Path, traces: str = "kineto_trace_*") -> Path:
    iteration = folder / "outputs" / "profile_trace" / "iteration_10"
    iteration.mkdir(parents=True)
    for trace in sharded.glob(traces):
        shutil.copy(trace, iteration)
    return iteration


@pytest.fixture
def iteration(here: Path, left: Path) -> Path:
    """Return the traces, with their configuration in the working directory."""
    (here / "train.toml").write_text(CONFIG)
    return left


def _report(capsys: Captured, *arguments: str) -> Path:
    from pathlib import Path

    assert main([*arguments]) == 0
    return Path(capsys.readouterr().out.strip())


def test_the_report_is_named_after_the_configuration_and_has_what_follows_from_it(
    iteration: Path, capsys: Captured
) -> None:
    """The configuration makes 4 sequences on each of 2 data-parallel ranks, of 256 tokens."""
    written = _report(capsys, str(iteration), "--config", "train.toml")
    assert written.parent.name == "trace_analysis"
    assert re.fullmatch(r"\d{8}_\d{6}_llama3_8B_dp1x2_tp2_gpu4\.txt", written.name)
    page = written.read_text()
    assert page.startswith("CCL-Bench report: llama3_8B\n")
    sections = re.findall(r"^(\S.*)$", page, flags=re.MULTILINE)
    assert sections[1:8] == [
        "Data quality",
        "Headline numbers",
        "Step times",
        "Where the time goes",
        "One step, rank by rank",
        "Communication",
        "Bus bandwidth",
    ]
    plain = " ".join(page.split())
    assert f"{2 * 4 * 256:,} tokens a step" in plain
    assert re.search(r"all_reduce +8 +8\.39 MB", page)  # 8 calls of 1 MiB in each step
    assert re.search(r"reduce_scatter (bus: )?0\.\d+ GB/s", plain)  # below its name where digits are many
    assert re.search(r"dp_shard +8 ", page)


def test_reports_of_one_second_are_files_of_their_own_with_the_same_text(
    of_one_rank: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl_bench.cli.measure.report.text_report_name", lambda *_: "report.txt")
    first = _report(capsys, str(of_one_rank))
    text = first.read_text()
    first.write_text("mine")
    later = [_report(capsys, str(of_one_rank)) for _ in range(2)]
    assert [path.name for path in later] == ["report_2.txt", "report_3.txt"]
    assert first.read_text() == "mine"
    assert [path.read_text() for path in later] == [text, text]
    assert text.startswith("CCL-Bench report")


def test_a_folder_of_reports_that_is_a_file_is_refused(of_one_rank: Path, capsys: Captured) -> None:
    assert main([str(of_one_rank), "--output-dir", "train.toml"]) == 2
    assert "train.toml is not a directory" in capsys.readouterr().err


def test_git_ignores_reports(root: Path) -> None:
    ignored = subprocess.run(
        ["git", "check-ignore", "trace_analysis/20260101_120000_llama3_8B_dp1x2_tp2_gpu4.txt"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    assert ignored.returncode == 0


def test_a_report_does_not_become_part_of_the_run(here: Path, sharded: Path, capsys: Captured) -> None:
    run = _left(here, sharded, "kineto_trace_0.*")
    first = _report(capsys, str(run), "--output-dir", str(run / "trace_analysis"))
    assert _report(capsys, str(run)).read_bytes() == first.read_bytes()


def test_the_options_may_come_first(of_one_rank: Path, capsys: Captured) -> None:
    assert _report(capsys, "--config=train.toml", str(of_one_rank)).exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere"], 4, "no such file"),
        (["nowhere", "--config", "nowhere.toml"], 4, "nowhere"),
        (["--config", "x.toml"], 2, "missing"),
        (["nowhere", "--confg", "x"], 2, "did you mean --config"),
    ],
)
def test_a_wrong_call_is_reported_like_everywhere(
    arguments: list[str], status: int, message: str, here: Path, capsys: Captured
) -> None:
    assert main(arguments) == status
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_a_configuration_that_is_not_there_is_missing_input(
    iteration: Path, here: Path, capsys: Captured
) -> None:
    assert main([str(iteration), "--config", "other.toml"]) == 4
    assert "other.toml" in capsys.readouterr().err
    assert not (here / "trace_analysis").exists()
