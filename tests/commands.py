"""The installed commands, run as a user runs them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"


def ran(command: str | list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Return what a command came to, run from the repository root with 100 columns and no terminal.

    Programs are taken from the environment that the tests run in.
    """
    words = shlex.split(command) if isinstance(command, str) else command
    here = Path(sys.executable).parent
    program = here / words[0]
    return subprocess.run(
        [str(program) if program.exists() else words[0], *words[1:]],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
