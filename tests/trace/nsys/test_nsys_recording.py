"""A program recorded by the real nsys, and what is measured of it."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys

import pytest
from exports import content, derived
from real_nsys import NSYS, needs_nsys

from ccl_bench.trace.formats.nsys.processes import processes

STEPS, SLEEP_S = 5, 0.03

PROGRAM = f"""
import hashlib, json, sys, time
import nvtx

steps = []
for number in range({STEPS}):
    began = time.perf_counter_ns()
    with nvtx.annotate(f"step {{number}}"):
        inside = time.perf_counter_ns()
        with nvtx.annotate("forward"):
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 50_000)
        with nvtx.annotate("backward", domain="training"):
            time.sleep({SLEEP_S})
        inner = time.perf_counter_ns() - inside
    steps.append([inner, time.perf_counter_ns() - began])
handle = nvtx.start_range("evaluation")
nvtx.mark("a mark")
nvtx.end_range(handle)
json.dump(steps, open(sys.argv[1], "w"))
"""

WITH_NVTX = "0.2.11"
"""Later versions of the Python package are not seen by Nsight Systems 2022.4."""


def _nvtx_version():
    return importlib.metadata.version("nvtx") if importlib.util.find_spec("nvtx") else ""


needs_nvtx = pytest.mark.skipif(
    _nvtx_version() != WITH_NVTX, reason=f"nvtx {WITH_NVTX} is not installed: pip install nvtx=={WITH_NVTX}"
)


ATTEMPTS = 3
"""On a busy machine nsys sometimes loses the agent that it has just started."""


def _run(*command, folder):
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Record the program; return the report and the lengths of the steps as the program measured them, from
    within and from without."""
    folder = tmp_path_factory.mktemp("recording")
    (folder / "program.py").write_text(PROGRAM)
    report, program = folder / "report.nsys-rep", (sys.executable, "program.py", "steps.json")
    for attempt in range(ATTEMPTS):
        session = f"ccl-bench-{os.getpid()}-{attempt}"
        options = ("-t", "nvtx,osrt", "-s", "none", "--cpuctxsw=none", "-o", str(report.with_suffix("")))
        said = _run(NSYS, "profile", f"--session-new={session}", *options, *program, folder=folder)
        if said.returncode == 0:
            break
        _run(NSYS, "shutdown", f"--session={session}", "--kill=sigkill", folder=folder)
    if not report.is_file() and "importer binary" in said.stderr:
        pytest.skip("nsys finds no importer: link host-linux-x64 beside its target-linux-x64")
    assert report.is_file(), said.stdout + said.stderr
    return report, json.loads((folder / "steps.json").read_text())


@needs_nsys
@needs_nvtx
def test_the_steps_of_a_recorded_program_are_as_long_as_it_found_them(recording):
    report, measured = recording
    (process,) = processes(report)
    steps = derived(content(report, process.id), "steps")
    assert steps["step"].to_list() == list(range(STEPS))
    assert set(steps["source"]) == {"numbered range"}
    lengths = (steps["end_ns"] - steps["start_ns"]).to_list()
    for length, (inner, outer) in zip(lengths, measured, strict=True):
        assert inner <= length <= outer


@needs_nsys
@needs_nvtx
def test_each_recorded_range_is_an_annotation(recording):
    report, _ = recording
    found = content(report)
    names = dict(found.table("annotations").group_by("name").len().iter_rows())
    assert names == {f"step {n}": 1 for n in range(STEPS)} | {
        "forward": STEPS,
        "backward": STEPS,
        "evaluation": 1,
    }
    assert found.attributes["nsys_version"]
    assert [finding.code for finding in found.findings] == []
