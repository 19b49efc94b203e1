"""Running `ccl-bench collect` as a user does, and looking at what it left."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from commands import invoke
from launchers import FORKING, LOADED, LOADED_FOR

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
LOOP = HERE / "training_loop.py"
FORKED = str(FORKING / "torchrun")
"""A `torchrun` that loads torch once for all ranks."""
PLAIN = (*LOADED, str(BIN / "torchrun"))
"""torch's own, whose ranks are processes that load torch themselves."""

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("CCL_BENCH_", "PET_"))},
    # Of a command that names no Python the system's is asked, which has no torch to load.
    "PATH": f"/usr/bin:/bin:{BIN}:{os.environ['PATH']}",
    "PYTHON": sys.executable,
    "OMP_NUM_THREADS": "1",
    **LOADED_FOR,
    "COLUMNS": "100",
    "NO_COLOR": "1",
}


def torchrun(
    program: Path, *arguments: object, ranks: int = 2, launcher: tuple[str, ...] = (FORKED,)
) -> list[str]:
    """Return the command that starts a program on so many ranks of this machine."""
    return [*launcher, "--standalone", f"--nproc-per-node={ranks}", str(program), *map(str, arguments)]


def python(program: str, *arguments: object) -> list[str]:
    """Return the command that runs the text of a program in this Python, without naming it."""
    return ["sh", "-c", 'exec "$PYTHON" -c "$0" "$@"', program, *map(str, arguments)]


def loaded_python(program: str, *arguments: object) -> list[str]:
    """Return the command that runs the text of a program in a child of the process that has loaded torch."""
    run = f'exec {shlex.join(LOADED)} -c "$0" "$@"'
    return ["sh", "-c", run, program, *map(str, arguments)]


def collect(folder: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call `ccl-bench collect` with these words in a folder, in this process."""
    with mock.patch.dict(os.environ, clear=True):
        os.environ.update(ENVIRONMENT)
        return invoke(["ccl-bench", "collect", *map(str, words)], folder=folder, **variables)


def files(run: Path) -> set[str]:
    """Return the files of a run, those of the launcher's logs left out."""
    found = (path for path in run.rglob("*") if path.is_file() or path.is_symlink())
    return {path.relative_to(run).as_posix() for path in found if "logs" not in path.parts}


def own_bounds(recorded: Any, step: int, ranks: tuple[int, ...] = (0, 1)) -> tuple[float, float]:
    """Return between which lengths the step of the slowest rank lies, s, by the clock of `training_loop.py`.

    A step is marked around the loop's own: from the end of the one before at the earliest, to the begin of
    the next.
    """
    own = [json.loads((recorded.folder / f"own.{rank}").read_text()) for rank in ranks]
    inside = max(rank[step][1] - rank[step][0] for rank in own)
    return inside, max(rank[step + 1][0] - rank[step - 1][1] for rank in own)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 300 kB, of which 50 kB are free."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here: run as root")
    try:
        (folder / "filler").write_bytes(b"x" * 250_000)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
