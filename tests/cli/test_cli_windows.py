"""Measuring and reporting need no module and no name that Python for Windows lacks."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

COMMANDS = """
ccl-metrics RUN --metric coll_call_num
ccl-metrics RUN --all --engine processes --jobs 2 --no-cache
ccl-bench inspect RUN
ccl-bench validate RUN
ccl-bench diagnose RUN
ccl-bench compare RUN RUN
ccl-bench report RUN -o OUT/report.html
ccl-bench timeline RUN -o OUT/timeline.json.gz
ccl-bench completion bash
ccl-bench collect --output OUT/recorded -- true
"""


def test_commands_that_measure_work_without_what_windows_lacks(sharded: Path, tmp_path: Path) -> None:
    text = COMMANDS.replace("RUN", str(sharded)).replace("OUT", str(tmp_path))
    lines = [line.split() for line in text.split("\n") if line]
    environment = {"CCL_BENCH_CACHE": str(tmp_path / "cache"), "CCL_BENCH_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("without_posix.py"), json.dumps(lines)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == [0] * (len(lines) - 1) + [2], done.stderr
    assert "a command cannot be recorded on Windows" in done.stderr
    assert done.stdout.startswith("16\n")
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with gzip.open(tmp_path / "timeline.json.gz") as file:
        assert json.load(file)["traceEvents"]
