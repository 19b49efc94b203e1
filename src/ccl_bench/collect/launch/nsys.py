"""Nsight Systems: put it in front of a command, and find the rank of each process in its reports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import tomllib
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ccl_bench.base.errors import InputError
from ccl_bench.run.completeness import RANK_MAP
from ccl_bench.storage import write_atomically
from ccl_bench.trace.formats.nsys import NSYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.trace.formats import Part

SRUN = "srun"


def is_srun(command: Sequence[str]) -> bool:
    """Whether a command starts tasks of Slurm."""
    return bool(command) and PurePath(command[0]).name == SRUN


def split_srun(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return `srun` with its options, and the program with its arguments."""
    position = 1
    while position < len(command) and command[position].startswith("-") and command[position] != "-":
        word = command[position]
        position += 1
        if word == "--":
            break
        position += _takes_next_word(word)
    return list(command[:position]), list(command[position:])


def _takes_next_word(word: str) -> bool:
    """Whether the value of an option stands in the next word."""
    if word.startswith("--"):
        name = word[2:]
        return "=" not in name and not any(flag.startswith(name) for flag in _srun_options()["flags"])
    for place, letter in enumerate(word[1:], start=1):
        if letter in _srun_options()["short_attached"]:
            return False
        if letter not in _srun_options()["short_flags"]:
            return place == len(word) - 1
    return False


@cache
def _srun_options() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("slurm.toml").read_text(encoding="utf-8"))


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
        before, program = split_srun(command) if is_srun(command) else ([], list(command))
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


_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_NODE = re.compile(r"_node(\d+)_")
_PID = re.compile(r"pid(\d+)")


class _RecordedProcess(NamedTuple):
    """One process of one report."""

    name: str
    """What stands for it in `ranks.json`."""
    node: int
    part: Part


def write_rank_map(target: Path, known: Sequence[dict[str, Any]]) -> list[str]:
    """Write the ranks of processes that do not say theirs; return what had to be assumed.

    `known` are the processes that recorded themselves, with `rank`, `node` and `pid`. Reports of
    several nodes without any are taken in the order of the nodes, as torchrun orders nodes by name.
    """
    path = target / RANK_MAP
    if path.exists() or NSYS.in_parts is None:
        return []
    try:
        silent = [process for process in _processes(target) if process.part.identity.rank is None]
    except InputError as error:
        return [str(error)]
    remarks = []
    ranks = _ranks_by_process(silent, known)
    if not ranks and len({process.node for process in silent}) > 1:
        ranks = _ranks_by_node(silent)
        if ranks:
            remarks.append("ranks in reports of several nodes are taken in the order of the nodes")
    if ranks:
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(ranks, indent=2) + "\n", encoding="utf-8")
            temporary.chmod(0o644)
    return remarks


def _processes(target: Path) -> Iterator[_RecordedProcess]:
    """Yield the processes of every report in the directory, in order."""
    for path in sorted(path for path in target.iterdir() if path.suffix in _REPORT_SUFFIXES):
        node = _NODE.search(path.name)
        for part in NSYS.in_parts.parts(path) if NSYS.in_parts else ():
            name = f"{path.name}#{part.id}" if part.id else path.name
            yield _RecordedProcess(name, int(node[1]) if node else 0, part)


def _ranks_by_process(silent: Sequence[_RecordedProcess], known: Sequence[dict[str, Any]]) -> dict[str, int]:
    ranks = {(each["node"], each["pid"]): each["rank"] for each in known}
    found = {}
    for process in silent:
        pid = _PID.search(process.part.id)
        rank = ranks.get((process.node, int(pid[1]))) if pid else None
        if rank is not None:
            found[process.name] = rank
    return found


def _ranks_by_node(silent: Sequence[_RecordedProcess]) -> dict[str, int]:
    """Return node times processes of a node plus place in the order of devices, where all are known."""
    nodes = sorted({process.node for process in silent})
    counts = {sum(process.node == node for process in silent) for node in nodes}
    if len(counts) != 1 or any(process.part.local_rank is None for process in silent):
        return {}
    size = counts.pop()
    return {p.name: nodes.index(p.node) * size + (p.part.local_rank or 0) for p in silent}
