"""Running `ccl-bench collect` as a user does, and looking at what it left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
LOOP = HERE / "training_loop.py"

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("CCL_BENCH_", "PET_"))},
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "100",
    "NO_COLOR": "1",
}


def torchrun(program: Path, *arguments: object, ranks: int = 2) -> list[str]:
    """Return the command that starts a program on so many ranks of this machine."""
    launcher = ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, str(program), *map(str, arguments)]


def collect(folder: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `ccl-bench collect` with these words in a folder."""
    return subprocess.run(
        [str(BIN / "ccl-bench"), "collect", *map(str, words)],
        cwd=folder,
        env={**ENVIRONMENT, "CCL_BENCH_CACHE": str(folder / "cache"), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def files(run: Path) -> set[str]:
    """Return the files of a run, those of the launcher's logs left out."""
    found = (path for path in run.rglob("*") if path.is_file() or path.is_symlink())
    return {path.relative_to(run).as_posix() for path in found if "logs" not in path.parts}
