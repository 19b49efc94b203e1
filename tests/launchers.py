"""Programs in the place of `torchrun`: one that loads torch once, and one that only writes down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FORKING = Path(__file__).resolve().parent / "forking"
"""Where a `torchrun` lies whose ranks are forked from it; it runs under the Python of the variable PYTHON."""
LOADED = (sys.executable, "-I", "-S", str(FORKING / "loaded.py"))
"""Runs a program of Python in a child of one process that has loaded torch."""
LOADED_FOR = {"LOADED_FOR": str(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())}
"""The variable with which this `torchrun` is run in such a child, too: the process ends with all tests."""


def asked(script: Path, folder: Path, *arguments: str, **variables: str) -> list[str]:
    """Return what a script asks of torchrun, profiled or not, when it is run in a folder."""
    said, programs = folder / "asked", folder / "bin"
    programs.mkdir()
    (programs / "torchrun").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{said}"\n')
    (programs / "nsys").write_text('#!/bin/sh\nuntil [ "$1" = torchrun ]; do shift; done\nexec "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    # Of a script that names no Python the system's is asked, which has no torch to load.
    path = f"{programs}:/usr/bin:/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(
        [str(script), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert said.exists(), done.stderr
    return said.read_text().splitlines()
