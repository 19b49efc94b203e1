"""Set up the environment of the compared programs."""

from __future__ import annotations

import subprocess
import venv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

REQUIREMENTS = (
    *("HolisticTraceAnalysis==0.5.0", "pandas<2.3", "orjson", "pysimdjson", "duckdb", "nsys-ai==0.3.0"),
)
TRACELENS = "git+https://github.com/AMD-AGI/TraceLens"
"""TraceLens is in no registry of packages: `tracelens` there is another program."""
_DONE = "requirements.txt"


def interpreter(folder: Path) -> Path:
    """Return the Python with the peers, after installing them if necessary.

    If the repository of TraceLens cannot be reached, its rows say that it is missing.
    """
    python, marker = folder / "bin" / "python", folder / _DONE
    requirements = "\n".join(REQUIREMENTS)
    if not marker.is_file() or marker.read_text() != requirements:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", TRACELENS], check=False)
        marker.write_text(requirements)
    return python


def versions(python: Path) -> dict[str, str]:
    """Return the installed version of each peer."""
    names = ("HolisticTraceAnalysis", "pandas", "orjson", "pysimdjson", "duckdb", "nsys-ai")
    program = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    process = subprocess.run([python, "-c", program, *names], check=True, capture_output=True, text=True)
    return dict(zip(names, process.stdout.split(), strict=True))
