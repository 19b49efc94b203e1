"""Disks that are full, closed, shared, damaged, and clocks that were moved."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import ROOT, invoke, ran
from faulty import (
    METRIC,
    NAMED,
    assert_reported_in_words,
    metrics,
    on_a_small_disk,
    small_run,
    values,
)
from forked_programs import Forked

PROGRAM = Path(sys.executable).parent / "ccl-metrics"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return small_run(tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float | None]:
    """Return metric -> value of such a run."""
    return values(metrics(small_run(tmp_path_factory.mktemp("whole")), "--no-cache"))


@pytest.fixture
def unprivileged() -> tuple[str, ...]:
    """Return what holds a command to the permissions of files even where root runs the tests."""
    if os.geteuid():
        return ()
    if not shutil.which("setpriv"):
        pytest.skip("permissions bind nobody here: no setpriv (apt-get install util-linux)")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")


def test_a_full_disk_for_the_cache_costs_no_number_and_keeps_nothing_broken(
    run: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    command = [str(PROGRAM), "--trace", str(run), "--metric", METRIC]
    whole = invoke(["ccl-metrics", *command[1:], "--no-cache"]).stdout
    printed = on_a_small_disk(cache, "24k", command, CCL_BENCH_CACHE=str(cache)).splitlines()
    assert printed[:2] == [whole.strip(), "status 0"]
    assert not [line for line in printed[2:] if "about.json" in line]


@pytest.mark.usefixtures("shared_cache")
def test_a_full_disk_for_a_report_is_reported_and_the_former_report_stays(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    report = place / "report.html"
    write = f'printf former > {report}; exec "$@"'
    command = [str(PROGRAM.with_name("ccl-bench")), "report", str(run), "--output", str(report), "--force"]
    printed = on_a_small_disk(place, "64k", ["sh", "-c", write, "sh", *command])
    assert "No space left on device" in printed
    assert "fix: " in printed
    assert "Traceback" not in printed
    assert printed.splitlines()[-2:] == ["status 1", "report.html 6"]


@pytest.mark.parametrize("mode", [0o500, 0o000], ids=["written", "read"])
def test_a_cache_that_may_not_be_used_costs_no_number(
    run: Path, tmp_path: Path, unprivileged: tuple[str, ...], mode: int
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=mode)
    command = ["ccl-metrics", "--trace", str(run), "--metric", METRIC]
    done = ran(command, within=unprivileged, CCL_BENCH_CACHE=str(closed / "cache"))
    open_to_all = invoke([*command, "--no-cache"])
    assert (done.returncode, done.stdout) == (0, open_to_all.stdout)


def test_a_place_for_output_that_may_not_be_written_is_reported(
    run: Path, tmp_path: Path, unprivileged: tuple[str, ...]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    report = closed / "report.txt"
    done = ran(["ccl-bench", "report", str(run), "--output", str(report)], within=unprivileged)
    assert_reported_in_words(done, 1)
    assert f"{report} cannot be opened: Permission denied" in done.stderr


def _files_in(folder: Path) -> int:
    """Return how many files lie in a folder from which others move and remove some meanwhile."""
    return sum(len(files) for _, _, files in os.walk(folder))


def test_killed_while_it_fills_the_cache_nothing_false_is_kept(
    run: Path, own_cache: Path, whole: dict[str, float | None]
) -> None:
    with Path(os.devnull).open("r+b") as nothing:
        command = [PROGRAM, "--trace", run, *NAMED, "--jobs", "1"]
        process = Forked(command, (nothing, nothing, nothing), ROOT, os.environ)
    while process.poll() is None and _files_in(own_cache) < 20:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    entries = [*own_cache.glob("traces/*")]
    assert [entry for entry in entries if not (entry / "about.json").is_file()] == []
    assert values(metrics(run)) == whole


def test_processes_that_fill_one_cache_at_once_say_the_same(run: Path) -> None:
    command = ["ccl-metrics", "--trace", str(run), *NAMED, "--format", "csv"]
    with ThreadPoolExecutor(2) as two:
        printed = {done.stdout for done in two.map(ran, [command, command])}
    assert printed == {invoke([*command, "--no-cache"]).stdout}


@pytest.mark.parametrize("cut", [0.0, 0.5])
def test_a_cache_of_which_every_file_is_damaged_changes_no_number(
    run: Path, own_cache: Path, cut: float, whole: dict[str, float | None]
) -> None:
    metrics(run)
    for path in own_cache.rglob("*.*"):
        if path.is_file():
            os.truncate(path, int(cut * path.stat().st_size))
    assert values(metrics(run)) == whole


@pytest.mark.parametrize("year", [1970, 2100])
def test_a_clock_that_was_moved_changes_no_number(
    run: Path, year: int, whole: dict[str, float | None]
) -> None:
    moment = (year - 1970) * 365 * 86_400
    for path in run.iterdir():
        os.utime(path, (moment, moment))
    for _ in ("read", "kept"):
        assert values(metrics(run)) == whole


def test_a_file_written_over_at_its_old_time_is_read_again(run: Path) -> None:
    trace = run / "rank0_trace.json"
    before, stat = values(metrics(run)), trace.stat()
    content = trace.read_bytes()
    trace.write_bytes(content.replace(b'"ProfilerStep#', b'"profilerStep#'))
    os.utime(trace, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert trace.stat().st_size == stat.st_size
    assert values(metrics(run)) != before


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sign", "new", "mine"], "mine.key cannot be written: No space left on device"),
        (["tables", "RUN", "-t", "kernels", "--output", "."], "kernels.parquet: cannot be written"),
        (["log", "RUN", "-m", "coll_call_num", "--to", "tensorboard:."], "OSError: [Errno 28] No space left"),
        (["collect", "--source", "RUN", "--output", "."], "the run is incomplete"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_a_full_disk_is_reported_and_no_empty_file_keeps_the_name(
    run: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    """An empty key or card would be in the way of a whole one."""
    place = tmp_path / "disk"
    place.mkdir()
    (run / "workload_card.yaml").write_text("version: 1\n", encoding="utf-8")
    fill = f'cd {place}; head -c 1M /dev/zero > filler 2> /dev/null; exec "$@"'
    command = [str(PROGRAM.with_name("ccl-bench")), *(str(run) if word == "RUN" else word for word in words)]
    printed = on_a_small_disk(place, "16k", ["sh", "-c", fill, "sh", *command])
    assert said in printed
    assert "fix: " in printed
    assert "Traceback" not in printed
    assert "status 1\n" in printed
    assert [line for line in printed.partition("status 1\n")[2].splitlines() if line.endswith(" 0")] == []
