"""A script measures in processes although its last lines do not stand below `if __name__ == "__main__"`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from commands import EXAMPLE

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # so that workers cannot be forked
print("once")
from ccl_bench.engine import use_engine
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
with use_engine("processes"):
    (found,) = evaluate(open_run(sys.argv[1]), ["coll_call_num"], use_cache=False)
print(found.value)
"""


def test_workers_do_not_run_the_script_again(tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["once", "16.0"]
