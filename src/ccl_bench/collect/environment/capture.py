"""Capture what a run runs on: machine, software, environment variables and the git checkout.

Every source is optional. One that is not available gives the reason; nothing is guessed.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__
from ccl_bench.collect.environment import machine
from ccl_bench.collect.environment.machine import Unavailable, program_output
from ccl_bench.run import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change computing or communicating, and never a secret."""
    lists = _name_patterns()
    return {
        name: value
        for name, value in sorted(environment.items())
        if _matches(name, lists["relevant"]) and not _matches(name, [*lists["never"], *lists["personal"]])
    }


def communication_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the relevant variables that tune the communication library."""
    patterns = _name_patterns()["communication"]
    return {
        name: value for name, value in relevant_variables(environment).items() if _matches(name, patterns)
    }


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name.upper(), pattern) for pattern in patterns)


@cache
def _name_patterns() -> Mapping[str, Sequence[str]]:
    text = resources.files(__package__).joinpath("variables.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


PROBE_TIMEOUT_S = 120.0
"""Time limit for importing torch, which takes a minute on a cold parallel file system."""

_PROBE = Path(__file__).with_name("probe.py")
_PYTHON = re.compile(r"(?:^|/)(?:python|pypy)[\d.]*$")
_DEFAULT = "python3"


def describe_software(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return versions and devices in the interpreter of `command`."""
    python = find_interpreter(command, environment)
    program = _PROBE.read_text(encoding="utf-8")
    printed = program_output(
        python, "-c", program, timeout_s=PROBE_TIMEOUT_S, folder=folder, environment=environment
    )
    try:
        found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Unavailable(f"{python} printed no versions") from error
    return found


def find_interpreter(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the Python that a command runs: one of its words, or the interpreter of its first script.

    Launchers such as `srun` or `numactl` come before it, so every word is examined.
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
    """Return the interpreter in the first line of a Python script, or an empty string."""
    try:
        with script.open("rb") as stream:
            line = stream.readline(256).decode(errors="replace")
    except OSError:
        return ""
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    return next((word for word in words if _PYTHON.search(word)), "")


_GIT_TIMEOUT_S = 10.0


def describe_git(folder: Path) -> dict[str, str | bool | int]:
    """Return commit, branch and the number of changed files of the checkout that `folder` is in."""
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no").splitlines()
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "is_clean": not changed,
        "changed_files": len(changed),
    }


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git, which takes no optional locks and so writes nothing into the checkout."""
    try:
        output = program_output(
            "git", "--no-optional-locks", "-C", str(folder), *arguments, timeout_s=_GIT_TIMEOUT_S
        )
    except Unavailable as reason:
        if "not a git repository" in str(reason):
            raise Unavailable("the working directory is not in a git checkout") from reason
        raise
    return output.strip()


FILE_NAME = ENVIRONMENT
SCHEMA_VERSION = 1


def capture_environment(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, at: datetime | None = None
) -> dict[str, Any]:
    """Return what `command` runs on, started in `folder` with these variables, as JSON data."""
    sources = {
        "host": machine.describe_host,
        "devices": machine.list_devices,
        "topology": machine.topology_matrix,
        "device_links": machine.nvlink_rates,
        "networks": machine.network_adapters,
        "software": lambda: describe_software(command, folder, environment),
        "git": lambda: describe_git(folder),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "ccl_bench": __version__,
        "captured_at": (at or datetime.now(UTC)).isoformat(timespec="seconds"),
        "command": list(command),
        "folder": str(folder),
        **{name: machine.query(source) for name, source in sources.items()},
        "variables": relevant_variables(environment),
    }
