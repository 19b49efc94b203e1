"""Versions in the environment that the command runs in, asked of its own interpreter."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.collect.environment.sources import Absent, output_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROBE_PATIENCE_S = 120.0
"""Time that importing torch gets; on a cold parallel file system it takes a minute."""

_PROBE = Path(__file__).with_name("probe.py")
_PYTHON = re.compile(r"(?:^|/)(?:python|pypy)[\d.]*$")
_DEFAULT = "python3"


def of_command(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return versions and devices as the interpreter of `command` sees them."""
    python = interpreter_of(command, environment)
    program = _PROBE.read_text(encoding="utf-8")
    printed = output_of(
        python, "-c", program, patience_s=PROBE_PATIENCE_S, folder=folder, environment=environment
    )
    try:
        found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Absent(f"{python} printed no versions") from error
    return found


def interpreter_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the Python that a command runs: a word of it, or what its first script is run by.

    Launchers such as `srun` or `numactl` come before it, so that every word is looked at.
    """
    path = environment.get("PATH")
    for word in command:
        if word.startswith("-") or "=" in word:
            continue
        if _PYTHON.search(word):
            return word
        program = shutil.which(word, path=path)
        if program and (found := _shebang(Path(program))):
            return found
    return _DEFAULT


def _shebang(script: Path) -> str:
    """Return the interpreter in the first line of a Python script, or an empty text."""
    try:
        with script.open("rb") as stream:
            line = stream.readline(256).decode(errors="replace")
    except OSError:
        return ""
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    return next((word for word in words if _PYTHON.search(word)), "")
