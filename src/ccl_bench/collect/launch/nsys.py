"""Putting Nsight Systems in front of a command, one report for each node that runs it."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from ccl_bench.collect.launch import slurm
from ccl_bench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TRACED = "cuda,nvtx,osrt"

REPORT = "report"
REPORT_OF_TASK = "report_node%q{SLURM_NODEID}_task%q{SLURM_PROCID}"
"""Name of a report under `srun`; Nsight Systems itself puts the variables in, on the node."""

_SHUTDOWN_PATIENCE_S = 30.0


class NsysProgram:
    """`nsys` with a session of its own, so that a recording that is left behind can be shut down."""

    def __init__(self, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
        """Find `nsys` on the PATH of the command; `options` are given to `nsys profile` besides ours."""
        found = shutil.which("nsys", path=environment.get("PATH"))
        if found is None:
            raise InputError(
                "nsys is not on PATH",
                fix="load the module that brings Nsight Systems, or use --profile-mode torch",
            )
        self.path = found
        self.options = list(options)
        self.session = f"ccl-bench-{time.time_ns():x}"

    def wrapped(self, command: Sequence[str], folder: Path) -> list[str]:
        """Return the command under `nsys profile`: behind srun's own options, else in front."""
        before, program = slurm.split(command) if slurm.is_srun(command) else ([], list(command))
        session = f"{self.session}-%q{{SLURM_PROCID}}" if before else self.session
        report = folder.resolve() / (REPORT_OF_TASK if before else REPORT)
        quiet = ["--sample=none", "--cpuctxsw=none", "--force-overwrite=true"]
        own = [f"--session-new={session}", f"--trace={TRACED}", *quiet, f"--output={_escaped(report)}"]
        return [*before, self.path, "profile", *own, *self.options, *program]

    def shut_down(self) -> None:
        """End a session that the command left behind; there is none when all went well."""
        if self.session not in self._asked("sessions", "list"):
            return
        self._asked("shutdown", f"--session={self.session}", "--kill=sigkill")

    def _asked(self, *arguments: str) -> str:
        try:
            ended = subprocess.run(  # noqa: S603 (the program that was found, with our arguments)
                [self.path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SHUTDOWN_PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return ended.stdout


def _escaped(path: Path) -> str:
    """Return a path in which only our own `%q` are patterns."""
    return f"{str(path.parent).replace('%', '%%')}/{path.name}"
