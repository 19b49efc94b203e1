"""Answer one damaged run after the other in a process that is watched and may be killed.

It reads one case a line from stdin (`{"command": [WORDS]}`) and writes what that came to
as one line: exit status, both streams, seconds on a processor, and the highest resident memory in bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path

ADDRESS_SPACE = 8 << 30
"""Bytes that the process may map; what asks for more gets a MemoryError."""


def main() -> None:
    """Answer cases until stdin ends."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for line in sys.stdin:
        channel.write(json.dumps(_answered(json.loads(line)["command"])) + "\n")
        channel.flush()


def _answered(command: list[str]) -> dict:
    from ccl_bench.cli import bench, metrics

    program, *words = command
    out, err = io.StringIO(), io.StringIO()
    _forget_peak()
    began, status = time.process_time(), 1
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = (metrics if program == "ccl-metrics" else bench).main(words)
        except BaseException:  # whatever comes out is the finding
            traceback.print_exc()
    seconds = time.process_time() - began
    return {
        "status": status,
        "out": out.getvalue(),
        "err": err.getvalue()[-20_000:],
        "seconds": seconds,
        "peak": _peak(),
    }


def _forget_peak() -> None:
    """Let the kernel count the peak of resident memory anew (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Return the highest resident memory since it was forgotten, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
