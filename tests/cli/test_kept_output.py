"""A command that is given again prints again what it printed, and measures where anything has changed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from shared import shared_cache_folder

from ccl_bench import storage
from ccl_bench.base.registry import Registry
from ccl_bench.cli import kept_output
from ccl_bench.cli.kept_output import MOST_FILES, UnwatchableError, file_signature
from ccl_bench.cli.metrics import main
from ccl_bench.evaluate import compute
from ccl_bench.testing import Plan, write_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Ended = tuple[int, str, str]
    Command = Callable[..., Ended]


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Keep the outputs of each test apart from the others'; tables of traces are those that others read."""
    place = tmp_path / ".cache"
    place.mkdir()
    tables = shared_cache_folder(tmp_path_factory) / "traces"
    tables.mkdir(parents=True, exist_ok=True)
    (place / "traces").symlink_to(tables)
    monkeypatch.setenv("CCL_BENCH_CACHE", str(place))
    return place


class Measured:
    """Counts how often metrics are computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self.meanwhile: Callable[[], object] = lambda: None
        evaluate = compute.evaluate

        def counted(*given: object, **named: object) -> object:
            self.times += 1
            found = evaluate(*given, **named)  # type: ignore[arg-type]
            self.meanwhile()
            return found

        monkeypatch.setattr(compute, "evaluate", counted)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Count what is computed."""
    return Measured(monkeypatch)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return ccl-metrics as a process calls it; files count as old as soon as they are written."""
    monkeypatch.setattr(kept_output, "SETTLED_NS", -(10**15))

    def call(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["ccl-metrics", *map(str, words)])
        status = main()
        return (status, *capsys.readouterr())

    return call


@pytest.fixture
def run(small: Path, tmp_path: Path) -> Path:
    """Return a run that a test may change."""
    shutil.copytree(small, tmp_path / "run")
    return tmp_path / "run"


def outputs(cache: Path) -> list[Path]:
    """Return the files that outputs are kept in."""
    return sorted((cache / "texts/outputs").glob("*"))


@pytest.mark.parametrize(
    "options",
    [
        *(["--metric", "coll_call_num"], ["--metric", "mfu"], ["--all", "--format", "json"]),
        *(["--metric", "ttft"], ["--metric", "straggler", "--format", "table"]),
    ],
)
def test_the_same_command_prints_the_same_without_measuring(
    options: list[str], run: Path, command: Command, measured: Measured
) -> None:
    once = command(run, *options)
    assert once[1] or once[2]
    assert [command(run, *options) for _ in range(2)] == [once, once]
    assert measured.times == 1


def first_trace(run: Path) -> Path:
    """Return a trace of the run."""
    return sorted(run.rglob("*trace*.json*"))[0]


CHANGES: dict[str, Callable[[Path], object]] = {
    "a trace is another": lambda run: shutil.copyfile(
        sorted(run.rglob("*trace*.json*"))[1], first_trace(run)
    ),
    "a trace is written again": lambda run: first_trace(run).write_bytes(first_trace(run).read_bytes()),
    "a trace is gone": lambda run: first_trace(run).unlink(),
    "a file is new": lambda run: (run / "more.json").write_text("{}"),
    "a folder has a new file": lambda run: ((run / "a").mkdir(), (run / "a/b.toml").write_text("")),
    "a name is another": lambda run: first_trace(run).rename(run / "rank7_trace.json"),
    "a link is new": lambda run: (run / "link.json").symlink_to(first_trace(run)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_run_is_measured(
    change: str, run: Path, command: Command, measured: Measured
) -> None:
    command(run, "--metric", "coll_call_num")
    CHANGES[change](run)
    command(run, "--metric", "coll_call_num")
    assert measured.times == 2


def test_a_change_that_keeps_size_and_time_is_measured(
    run: Path, command: Command, measured: Measured
) -> None:
    trace = first_trace(run)
    command(run, "--metric", "coll_call_num")
    before = trace.stat()
    written = bytearray(trace.read_bytes())
    written[len(written) // 2] ^= 1
    trace.write_bytes(written)
    os.utime(trace, ns=(before.st_atime_ns, before.st_mtime_ns))
    command(run, "--metric", "coll_call_num")
    assert measured.times == 2


def test_another_question_is_measured(
    run: Path, command: Command, measured: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = run, "--metric", "coll_call_num"
    command(*asked)
    command(*asked, "--steps", "1")
    monkeypatch.setenv("CCL_BENCH_NATIVE", "0")
    command(*asked)
    monkeypatch.setenv("COLUMNS", "40")
    command(*asked)
    monkeypatch.chdir(tmp_path)
    command(*asked)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    command(*asked)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    command(*asked)
    assert measured.times == 7
    monkeypatch.setenv("UNRELATED", "1")
    command(*asked)
    assert measured.times == 7


def test_a_changed_program_measures_again(
    run: Path, command: Command, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(run, "--metric", "coll_call_num")
    real = file_signature
    monkeypatch.setattr(
        kept_output,
        "file_signature",
        lambda places: ("other", 0) if places[0].endswith("ccl_bench") else real(places),
    )
    command(run, "--metric", "coll_call_num")
    assert measured.times == 2


@pytest.mark.parametrize("option", ["--workload-card", "--ceiling"])
def test_a_file_that_is_named_beside_the_run_is_watched(
    option: str, run: Path, tmp_path: Path, command: Command, measured: Measured, sharded: Path, corpus: Path
) -> None:
    source = {
        "--workload-card": sharded / "workload_card.yaml",
        "--ceiling": sorted(path for path in (corpus / "nccl-tests").rglob("*") if path.is_file())[0],
    }[option]
    named = tmp_path / source.name
    shutil.copyfile(source, named)
    asked = run, "--metric", "coll_call_num", option, named
    command(*asked)
    command(*asked)
    assert measured.times == 1
    named.write_bytes(named.read_bytes() + b"\n")
    command(*asked)
    assert measured.times == 2


def test_what_lies_above_a_window_is_watched(tmp_path: Path, command: Command, measured: Measured) -> None:
    window = tmp_path / "job/profile_traces/iteration_10"
    window.mkdir(parents=True)
    write_run(Plan(dp_shard=2, steps=3), window)
    asked = window, "--metric", "coll_call_num"
    command(*asked)
    command(*asked)
    assert measured.times == 1
    (tmp_path / "job/train.toml").write_text("")
    command(*asked)
    assert measured.times == 2


def test_without_the_cache_nothing_is_kept(
    run: Path, command: Command, measured: Measured, own_cache: Path
) -> None:
    command(run, "--metric", "coll_call_num", "--no-cache")
    assert not outputs(own_cache)
    command(run, "--metric", "coll_call_num", "--no-cache")
    assert measured.times == 2


def test_files_that_have_just_changed_are_not_trusted(
    run: Path, command: Command, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_output, "SETTLED_NS", 10**15)
    command(run, "--metric", "coll_call_num")
    assert not outputs(own_cache)


def test_a_run_that_changes_while_it_is_measured_is_not_kept(
    run: Path, command: Command, measured: Measured, own_cache: Path
) -> None:
    measured.meanwhile = lambda: (run / "late.json").write_text("{}")
    command(run, "--metric", "coll_call_num")
    assert not outputs(own_cache)


def test_what_another_attempt_could_read_is_not_kept(run: Path, command: Command, own_cache: Path) -> None:
    assert "trace-unreadable" in command(run, "--all", "--format", "json", "--memory", "10KB")[1]
    assert not outputs(own_cache)


def test_a_metric_that_fails_is_not_kept(
    run: Path, command: Command, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(compute, "_compute_metric", broken)
    status, _, _ = command(run, "--metric", "coll_call_num")
    assert (status, outputs(own_cache)) == (1, [])


def test_with_plugins_nothing_is_kept(
    run: Path, command: Command, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "has_plugins", lambda _: True)
    command(run, "--metric", "coll_call_num")
    assert not outputs(own_cache)


@pytest.mark.parametrize("damage", ["other bytes", "no answer", "empty"])
def test_a_damaged_answer_is_measured_again(
    damage: str, run: Path, command: Command, measured: Measured, own_cache: Path
) -> None:
    once = command(run, "--metric", "coll_call_num")
    (kept,) = outputs(own_cache)
    if damage == "other bytes":
        kept.write_bytes(kept.read_bytes().replace(b'"status": 0', b'"status": 9'))
    elif damage == "no answer":
        storage.save_text(f"outputs/{kept.name}", json.dumps({"places": [], "output": 3}))
    else:
        kept.write_bytes(b"")
    assert command(run, "--metric", "coll_call_num") == once
    assert measured.times == 2


def test_a_cache_that_cannot_be_written_is_no_error(run: Path, command: Command, own_cache: Path) -> None:
    own_cache.mkdir(parents=True, exist_ok=True)
    (own_cache / "texts").write_text("in the way")
    once = command(run, "--metric", "coll_call_num")
    assert once[0] == 0
    assert command(run, "--metric", "coll_call_num") == once


def test_the_latest_outputs_are_kept(
    run: Path, command: Command, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_output, "MOST_OUTPUTS", 2)
    for metric in ("coll_call_num", "mfu", "straggler"):
        command(run, "--metric", metric)
    assert len(outputs(own_cache)) == 2


def test_a_long_output_is_not_kept(
    run: Path, command: Command, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_output, "MOST_CHARACTERS", 1)
    command(run, "--metric", "coll_call_num")
    assert not outputs(own_cache)


def test_too_many_files_have_no_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_FILES > 10_000
    monkeypatch.setattr("ccl_bench.cli.kept_output.MOST_FILES", 2)
    for number in range(4):
        (tmp_path / f"{number}").touch()
    with pytest.raises(UnwatchableError):
        file_signature([str(tmp_path)])


def test_the_journal_beside_a_database_counts(tmp_path: Path) -> None:
    database = tmp_path / "a.sqlite"
    database.touch()
    before = file_signature([str(database)])
    database.with_name("a.sqlite-wal").write_bytes(bytes(99))
    assert file_signature([str(database)])[0] != before[0]


def test_hidden_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    before = file_signature([str(tmp_path)])
    (tmp_path / ".b").touch()
    assert file_signature([str(tmp_path)]) == before
