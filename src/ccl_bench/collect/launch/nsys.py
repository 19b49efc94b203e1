"""Nsight Systems: wrap a command, and find the rank of each process in its reports."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import tomllib
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ccl_bench.base.errors import InputError
from ccl_bench.run.completeness import RANK_MAP
from ccl_bench.storage.files import replace_object
from ccl_bench.trace.formats.nsys import NSYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.trace.formats import TracePart

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
    """Whether the value of an option is the next word."""
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


_OPTIONS = (
    "--trace=cuda,nvtx,osrt",
    "--cuda-memory-usage=true",
    "--sample=none",
    "--cpuctxsw=none",
    "--force-overwrite=true",
)

_OF_TASK = "_node%q{SLURM_NODEID}_task%q{SLURM_PROCID}"
"""What distinguishes the reports of several tasks; Nsight Systems expands the variables on the node."""

_SHUTDOWN_TIMEOUT_S = 30.0


class NsysProgram:
    """`nsys` with a session of its own, which can be shut down if the command leaves it open."""

    def __init__(self, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
        """Find `nsys` on the PATH of the command; `options` are passed to `nsys profile` after ours."""
        path = shutil.which("nsys", path=environment.get("PATH"))
        if path is None:
            raise InputError(
                "nsys is not on PATH",
                fix="load the module of Nsight Systems, or use --profile-mode torch",
            )
        self.path = path
        self.options = list(options)
        self.session = f"ccl-bench-{time.time_ns():x}"

    def wrap(self, command: Sequence[str], folder: Path) -> list[str]:
        """Return the command under `nsys profile`, which comes after srun's own options or first.

        The report has the name of the run directory.
        """
        before, program = split_srun(command) if is_srun(command) else ([], list(command))
        session = f"{self.session}-%q{{SLURM_PROCID}}" if before else self.session
        report = str(folder.resolve() / folder.resolve().name).replace("%", "%%")
        is_one_task = any(word in {"--ntasks=1", "-n1"} for word in before) or any(
            pair in {("--ntasks", "1"), ("-n", "1")} for pair in pairwise(before)
        )
        if before and not is_one_task:
            report += _OF_TASK
        options = [f"--session-new={session}", *_OPTIONS, f"--output={report}"]
        return [*before, self.path, "profile", *options, *self.options, *program]

    def shut_down(self) -> None:
        """Shut down the session if the command left it open."""
        if self.session not in self._query("sessions", "list"):
            return
        self._query("shutdown", f"--session={self.session}", "--kill=sigkill")

    def _query(self, *arguments: str) -> str:
        try:
            result = subprocess.run(  # noqa: S603 (the program that was found, with our arguments)
                [self.path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SHUTDOWN_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return result.stdout


_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_NODE = re.compile(r"_node(\d+)_task\d+\.")
_PID = re.compile(r"pid(\d+)")


class _RecordedProcess(NamedTuple):
    """One process of one report."""

    name: str
    """Its key in `ranks.json`."""
    node: int
    part: TracePart


def write_rank_map(target: Path, recorded_processes: Sequence[dict[str, Any]]) -> list[str]:
    """Write the ranks of processes whose reports do not hold them; return remarks on assumptions.

    `recorded_processes` recorded themselves; each has `rank`, `node` and `pid`. Without any, the
    reports of several nodes are numbered in the order of the nodes, as torchrun orders nodes by name.
    """
    path = target / RANK_MAP
    if path.exists() or NSYS.in_parts is None:
        return []
    try:
        unranked = [process for process in _processes(target) if process.part.identity.rank is None]
    except InputError as error:
        return [str(error)]
    remarks = []
    recorded = {(each["node"], each["pid"]): each["rank"] for each in recorded_processes}
    ranks = {}
    for process in unranked:
        pid = _PID.search(process.part.id)
        rank = recorded.get((process.node, int(pid[1]))) if pid else None
        if rank is not None:
            ranks[process.name] = rank
    if not ranks and len({process.node for process in unranked}) > 1:
        ranks = _ranks_by_node(unranked)
        if ranks:
            remarks.append(
                "the ranks in the reports of several nodes are assumed to be in the order of the nodes"
            )
    if ranks:
        replace_object(path, ranks)
    return remarks


def _processes(target: Path) -> Iterator[_RecordedProcess]:
    """Yield the processes of every report in the directory, in order."""
    for path in sorted(path for path in target.iterdir() if path.suffix in _REPORT_SUFFIXES):
        node = _NODE.search(path.name)
        for part in NSYS.in_parts.parts(path) if NSYS.in_parts else ():
            name = f"{path.name}#{part.id}" if part.id else path.name
            yield _RecordedProcess(name, int(node[1]) if node else 0, part)


def _ranks_by_node(unranked: Sequence[_RecordedProcess]) -> dict[str, int]:
    """Return node × processes of a node + local rank; empty if a local rank is unknown."""
    nodes = sorted({process.node for process in unranked})
    counts = {sum(process.node == node for process in unranked) for node in nodes}
    if len(counts) != 1 or any(process.part.local_rank is None for process in unranked):
        return {}
    size = counts.pop()
    return {p.name: nodes.index(p.node) * size + (p.part.local_rank or 0) for p in unranked}
