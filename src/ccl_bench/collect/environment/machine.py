"""The record of the environment: machine, accelerators, links, software, variables and git checkout.

Every source is optional; an unavailable one gives the reason. Serial numbers and unique identifiers are
left out: they identify a machine and explain no number.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shutil
import subprocess
import tomllib
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__
from ccl_bench.run import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TIMEOUT_S = 20.0
"""Time limit of a program such as `nvidia-smi`, which hangs with a broken driver."""

ABSENT = "absent"
"""Key of the reason in the record of an unavailable source."""


class Unavailable(Exception):  # noqa: N818 (an answer, not an error)
    """A source is not available, for this reason."""


def query(source: Callable[[], Any]) -> Any:
    """Return the answer of a source, or `{"absent": reason}`."""
    try:
        return source()
    except Unavailable as reason:
        return {ABSENT: str(reason)}
    except (OSError, ValueError) as error:
        return {ABSENT: f"{type(error).__name__}: {error}"}


def is_unavailable(content: Any) -> bool:
    """Whether a record says that its source is not available."""
    return isinstance(content, dict) and ABSENT in content


def program_output(
    *command: str,
    timeout_s: float = TIMEOUT_S,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the output of a program; raise Absent if it is missing, fails or takes too long."""
    program = command[0]
    path = environment.get("PATH") if environment is not None else None
    executable = shutil.which(program, path=path)
    if executable is None:
        raise Unavailable(f"{program} is not installed")
    result = _run_program([executable, *command[1:]], timeout_s, folder, environment)
    if result.returncode:
        reason = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise Unavailable(
            f"{program} ended with status {result.returncode}: {reason[-1] if reason else 'no output'}"
        )
    return result.stdout


def _run_program(
    command: Sequence[str], timeout_s: float, folder: Path | None, environment: Mapping[str, str] | None
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
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} did not answer in {timeout_s:g} s") from error
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be started: {error.strerror}") from error


_CPU_INFO, _MEMORY_INFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def describe_host() -> dict[str, str | int | None]:
    """Return name, system, processor and memory of this machine."""
    kibibytes = re.match(r"\d+", _proc_field(_MEMORY_INFO, "MemTotal"))
    return {
        "name": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _proc_field(_CPU_INFO, "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": int(kibibytes[0]) * 1024 if kibibytes else None,
    }


def _proc_field(path: Path, name: str) -> str:
    """Return the first value of a name in a `name : value` file, empty if there is none."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    match = re.search(rf"^{name}\s*:\s*(.*)$", text, flags=re.MULTILINE)
    return match[1].strip() if match else ""


_DEVICE_FIELDS = {
    "index": "index",
    "name": "name",
    "memory_mib": "memory.total",
    "driver_version": "driver_version",
    "pcie_generation": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.max",
    "power_limit_w": "power.limit",
    "sm_clock_limit_mhz": "clocks.max.sm",
    "memory_clock_limit_mhz": "clocks.max.mem",
    "persistence_mode": "persistence_mode",
    "mig_mode": "mig.mode.current",
    "ecc_mode": "ecc.mode.current",
}
"""Name here -> name in `nvidia-smi --help-query-gpu`."""

_NO_VALUE = {"", "[n/a]", "n/a", "[not supported]", "[unknown error]"}


def list_devices() -> list[dict[str, Any]]:
    """Return one record for each device of this node."""
    return parse_devices(
        program_output(
            "nvidia-smi", f"--query-gpu={','.join(_DEVICE_FIELDS.values())}", "--format=csv,noheader,nounits"
        )
    )


def parse_devices(text: str) -> list[dict[str, Any]]:
    """Return the records in the output of `nvidia-smi`, without the fields that have no value."""
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    if not rows or any(len(row) != len(_DEVICE_FIELDS) for row in rows):
        raise Unavailable(f"nvidia-smi printed no list of devices: {text.strip()[:80]!r}")
    return [
        {
            name: _number(value)
            for name, value in zip(_DEVICE_FIELDS, row, strict=True)
            if value.strip().lower() not in _NO_VALUE
        }
        for row in rows
    ]


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


_INFINIBAND, _NETWORK = Path("/sys/class/infiniband"), Path("/sys/class/net")

_DEVICE = re.compile(r"^GPU (\d+):")
_LINK = re.compile(r"^\s+Link (\d+): ([\d.]+) GB/s")


def topology_matrix() -> list[str]:
    """Return the lines of the topology matrix of the node."""
    return [line.rstrip() for line in program_output("nvidia-smi", "topo", "-m").splitlines()]


def nvlink_rates() -> dict[str, list[float]]:
    """Return the rate of each NVLink of each device in one direction, GB/s (10^9 bytes)."""
    return parse_nvlinks(program_output("nvidia-smi", "nvlink", "--status"))


def parse_nvlinks(text: str) -> dict[str, list[float]]:
    """Return device index -> rates of its links, from the output of `nvidia-smi nvlink --status`."""
    rates: dict[str, list[float]] = {}
    device = ""
    for line in text.splitlines():
        if head := _DEVICE.match(line):
            device = head[1]
            rates[device] = []
        elif device and (link := _LINK.match(line)):
            rates[device].append(float(link[2]))
    if not any(rates.values()):
        raise Unavailable("nvidia-smi lists no active NVLink")
    return rates


def network_adapters() -> list[dict[str, Any]]:
    """Return the network adapters with their rates according to the kernel, Gbit/s."""
    adapters = [*infiniband_ports(_INFINIBAND), *network_interfaces(_NETWORK)]
    if not adapters:
        raise Unavailable("the kernel reports no rate of a network adapter")
    return adapters


def infiniband_ports(folder: Path) -> list[dict[str, Any]]:
    """Return the ports of InfiniBand and RoCE adapters; `rate` reads like `200 Gb/sec (4X HDR)`."""
    ports = []
    for rate in sorted(folder.glob("*/ports/*/rate")):
        number = re.match(r"[\d.]+", _file_text(rate))
        if number:
            kind = _file_text(rate.with_name("link_layer")) or "InfiniBand"
            ports.append({"name": rate.parts[-4], "kind": kind, "rate_gbps": float(number[0])})
    return ports


def network_interfaces(folder: Path) -> list[dict[str, Any]]:
    """Return network interfaces that are up and have a rate; `speed` is in Mbit/s, -1 if unknown."""
    interfaces = []
    for speed in sorted(folder.glob("*/speed")):
        number = _file_text(speed)
        if number.isdigit() and int(number) > 0 and _file_text(speed.with_name("operstate")) == "up":
            interfaces.append({"name": speed.parts[-2], "kind": "Ethernet", "rate_gbps": int(number) / 1000})
    return interfaces


def _file_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect computation or communication, without secrets."""
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
        software: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Unavailable(f"{python} printed no versions") from error
    return software


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
        if program and (interpreter := _shebang(Path(program))):
            return interpreter
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
    changed_files = _git(folder, "status", "--porcelain", "--untracked-files=no").splitlines()
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "is_clean": not changed_files,
        "changed_files": len(changed_files),
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
    """Return the environment of `command`, started in `folder` with these variables, as JSON data."""
    sources = {
        "host": describe_host,
        "devices": list_devices,
        "topology": topology_matrix,
        "device_links": nvlink_rates,
        "networks": network_adapters,
        "software": lambda: describe_software(command, folder, environment),
        "git": lambda: describe_git(folder),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "ccl_bench": __version__,
        "captured_at": (at or datetime.now(UTC)).isoformat(timespec="seconds"),
        "command": list(command),
        "folder": str(folder),
        **{name: query(source) for name, source in sources.items()},
        "variables": relevant_variables(environment),
    }
