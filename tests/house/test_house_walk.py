"""How many files one metric enters: whoever follows a number must read them."""

from __future__ import annotations

import subprocess
import sys

from checkout import ROOT

MOST_FILES = 61

PROGRAM = """
import sys
from types import FrameType

entered: set[str] = set()


def is_imported(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and "/ccl_bench/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def note(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event == "call" and "/ccl_bench/" in code.co_filename and code.co_filename not in entered:
        if not is_imported(frame):
            entered.add(code.co_filename)


from ccl_bench.cli.metrics import main

sys.setprofile(note)
main(sys.argv[1:])
sys.setprofile(None)
print(len(entered))
"""


def test_one_metric_of_the_example_run_enters_at_most_61_files() -> None:
    run = ROOT / "examples" / "runs" / "megatron-tp8-a100"
    words = [str(run), "--metric", "iteration_wall_clock_time", "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True, cwd=ROOT
    )
    value, files = map(float, done.stdout.split())
    assert value > 0
    assert 40 < files <= MOST_FILES
