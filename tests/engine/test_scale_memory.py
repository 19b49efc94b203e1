"""What is planned with as memory: what the machine has left, and what reading a trace takes."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ccl_bench.run import open_run
from ccl_bench.testing import Plan, Style, write_run
from ccl_bench.trace import memory

if TYPE_CHECKING:
    from pathlib import Path

GIGA = 1 << 30


def group(place: Path, limit: str, used: int, reclaimable: int) -> None:
    """Write what the kernel tells of a control group."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "memory.max").write_text(f"{limit}\n")
    (place / "memory.current").write_text(f"{used}\n")
    (place / "memory.stat").write_text(f"anon 5\ninactive_file {reclaimable}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the control groups of a machine that has 100 GiB left, with this process in /job/step."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 999999999 kB\nMemAvailable: {100 << 20} kB\n")
    (tmp_path / "own").write_text("0::/job/step\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    return tmp_path / "groups"


def test_four_fifths_of_what_is_available_are_planned_with(machine: Path) -> None:
    assert memory.memory_budget_bytes() == int(0.8 * 100 * GIGA)


def test_the_tightest_control_group_around_the_process_counts(machine: Path) -> None:
    group(machine / "job" / "step", "max", 2 * GIGA, 0)
    group(machine / "job", str(8 * GIGA), 4 * GIGA, GIGA)  # 8 - 4 used + 1 of pages that can go

    assert memory.memory_budget_bytes() == int(0.8 * 5 * GIGA)


def test_a_group_that_is_full_leaves_nothing(machine: Path) -> None:
    group(machine / "job", str(GIGA), 2 * GIGA, 0)

    assert memory.memory_budget_bytes() == 0


def test_where_free_memory_is_not_reported_that_of_the_machine_counts(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.parent / "meminfo").unlink()
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 1 << 14}.__getitem__)
    assert memory.memory_budget_bytes() == int(0.8 * 16 * GIGA)
    monkeypatch.delattr(os, "sysconf")  # as on Windows
    assert memory.memory_budget_bytes() > 1 << 60


def test_a_compressed_trace_is_taken_for_what_it_is_inside(tmp_path: Path) -> None:
    write_run(Plan(), tmp_path, style=Style(compresses=True))
    (trace,) = open_run(tmp_path).traces

    assert memory.inflated_bytes(trace) == len(gzip.decompress(trace.path.read_bytes()))


PROGRAM = """
import sys
from pathlib import Path
from ccl_bench import engine, metrics
from ccl_bench.evaluate.load import stated_inputs, needed_inputs
from ccl_bench.run import open_run
from ccl_bench.trace import memory

def kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

def read(place):
    run = open_run(place)
    wanted = [name for name in needed_inputs(run, metrics.load().names()) if name not in stated_inputs(run)]
    forms = {trace.form for trace in run.traces}
    (trace,) = run.traces
    engine.read_traces([engine.Task(trace, engine.tables_of_each_trace(wanted, forms), use_cache=False)])
    return trace

small, large = sys.argv[1:]
read(small)  # what is only loaded once is no part of it
Path("/proc/self/clear_refs").write_text("5")
before = kib("VmRSS:")
trace = read(large)
print((kib("VmHWM:") - before) * 1024, memory.needed_bytes(trace))
"""


def test_reading_a_trace_takes_no_more_memory_than_is_planned_for_it(tmp_path: Path) -> None:
    write_run(Plan(), tmp_path / "small")
    write_run(Plan(layers=4), tmp_path / "large", filler_bytes=60_000_000)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "small"), str(tmp_path / "large")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    taken, planned = map(int, done.stdout.split())

    (file,) = (tmp_path / "large").glob("rank*")
    assert planned == file.stat().st_size > 59_000_000
    assert taken < planned
