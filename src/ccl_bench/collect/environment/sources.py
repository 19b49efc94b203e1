"""Asking a source that may not be there: a program, a file of the system, another interpreter."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

PATIENCE_S = 20.0
"""Time that a program such as `nvidia-smi` gets; on a broken driver it never answers."""

ABSENT = "absent"
"""Key under which a source that gave nothing says why."""


class Absent(Exception):  # noqa: N818 (an answer, not an error)
    """A source gives nothing, and this is why."""


def said(source: Callable[[], Any]) -> Any:
    """Return what a source says, or `{"absent": reason}`."""
    try:
        return source()
    except Absent as reason:
        return {ABSENT: str(reason)}
    except (OSError, ValueError) as error:
        return {ABSENT: f"{type(error).__name__}: {error}"}


def is_absent(content: Any) -> bool:
    """Whether a source gave nothing."""
    return isinstance(content, dict) and ABSENT in content


def output_of(
    *command: str,
    patience_s: float = PATIENCE_S,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return what a program prints; raise Absent where it is not there, fails or takes too long."""
    program = command[0]
    path = environment.get("PATH") if environment is not None else None
    found = shutil.which(program, path=path)
    if found is None:
        raise Absent(f"{program} is not installed")
    ended = _ended([found, *command[1:]], patience_s, folder, environment)
    if ended.returncode:
        reason = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
        raise Absent(f"{program} ended with status {ended.returncode}: {reason[-1] if reason else 'no word'}")
    return ended.stdout


def _ended(
    command: Sequence[str], patience_s: float, folder: Path | None, environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 (programs of the machine, with fixed arguments)
            list(command),
            cwd=folder,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Absent(f"{command[0]} did not answer in {patience_s:g} s") from error
    except OSError as error:
        raise Absent(f"{command[0]} cannot be started: {error.strerror}") from error
