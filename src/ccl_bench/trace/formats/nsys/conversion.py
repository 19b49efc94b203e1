"""Run the `nsys` on PATH to turn a report into an SQLite export.

A report can be read by the version of `nsys` that recorded it and by later ones.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EXPORT_SECONDS = 3600.0
"""Longest time an export may take."""

_QUESTION_SECONDS = 60.0
_SAID_CHARACTERS = 300

INSTALLATION = "install Nsight Systems, on Debian: apt-get install nsight-systems (contrib and non-free)"

PAYLOADS = "--include-blobs"
"""Option of later versions that exports what NCCL says of each call."""


def convert(report: Path, output: Path, name: str) -> None:
    """Write the SQLite export of `report` to `output`; `name` names the report in messages.

    Raises InputError where there is no `nsys`, or where it cannot read the report.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        message = "is a report, which only nsys can read, and there is no nsys on PATH"
        raise InputError(message, where=name, fix=f"{INSTALLATION}; or {_elsewhere(name)}")
    options = [f"{PAYLOADS}=true"] if PAYLOADS in _said(nsys, "export", "--help") else []
    arguments = ["--quiet=true", "--type", "sqlite", *options, "-o", output.name, str(report.absolute())]
    status, said = _run([nsys, "export", *arguments], output.parent, EXPORT_SECONDS)
    if status == 0 and output.is_file():
        return
    late = f"it took longer than {EXPORT_SECONDS:.0f} s"
    why = late if status is None else _short(said) or f"exit status {status}"
    version = _short(_said(nsys, "--version")).removeprefix("NVIDIA Nsight Systems version ")
    raise InputError(
        f"nsys {version} cannot export it: {why}",
        where=name,
        fix=f"install the nsys that recorded it or a later one; or {_elsewhere(name)}",
    )


def _elsewhere(name: str) -> str:
    """Return what to do where this machine cannot do it."""
    stem = name.removesuffix(".gz").rpartition(".")[0]
    command = shlex.join(["nsys", "export", "--type", "sqlite", "-o", f"{stem}.sqlite", name])
    return f"run this where it was recorded, and put the result in its place: {command}"


def _short(said: str) -> str:
    return " ".join(said.split())[:_SAID_CHARACTERS]


def _said(*command: str) -> str:
    return _run(command, None, _QUESTION_SECONDS)[1]


def _run(command: Sequence[str], folder: Path | None, seconds: float) -> tuple[int | None, str]:
    """Return exit status, None when it ran out of time, and what the command said."""
    process = subprocess.Popen(  # noqa: S603 (no shell; the report's name is one argument)
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        _end(process)
    return process.returncode, said.decode("utf-8", errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it started, if it still runs."""
    with process:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
