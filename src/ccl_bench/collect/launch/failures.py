"""The failure of a command: its status, the first failed rank, and a cause from its last lines."""

from __future__ import annotations

import re
import signal
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.collect.launch.process import CommandResult

SHOWN_LINES = 6
"""Number of last lines to quote."""

_FAILED_RANK = (
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)\s*\n\s*exitcode\s*:\s*(?P<status>-?\d+)"
)
_FAILURE = re.compile(_FAILED_RANK)
"""The output of torchrun about each failed process."""
_FIRST_FAILURE = re.compile(rf"Root Cause \(first observed failure\):\s*\n.*?{_FAILED_RANK}", flags=re.DOTALL)
"""The output of torchrun about the first failure."""
_NAMES = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
_KILLING = {getattr(signal, name) for name in _NAMES if hasattr(signal, name)}
"""Signals of an independent failure; a rank that only loses its connection raises or aborts."""

_LAUNCHER_LINE = re.compile(
    r"torch/distributed/(?:run|launcher|elastic)|torch\.distributed\.elastic|torchrun|ChildFailedError|"
    r"^\s*(?:[=-]{8,}|Root Cause|Failures:|\[\d+\]:|time\s+:|host\s+:|rank\s+:|exitcode\s+:|error_file\s*:|"
    r"traceback\s*:)|^\S.* FAILED$|^\[?[WEI]\d{4} |<NO_OTHER_FAILURES>|USDT:"
)
"""Lines of torchrun's own report and of the profiler, which do not show the cause."""


_RAISED_BY_LAUNCHER = "errors.ChildFailedError"


@dataclass(frozen=True, slots=True)
class Failure:
    """How and why a command failed."""

    outcome: str
    """How it ended."""
    cause: str = ""
    """Why, if recognised."""
    fix: str = ""
    rank: int | None = None
    """Rank that failed first, if the launcher reports it."""
    lines: tuple[str, ...] = ()
    """Its last lines of output, without the launcher's own."""


def diagnose_failure(result: CommandResult) -> Failure:
    """Return the outcome of a failed command, with cause and fix if recognised."""
    first = _first_failure(result.tail)
    stopped_by = f"stopped by {result.received.name}" if result.received is not None else ""
    outcome = f"{stopped_by or f'ended {_status_text(result.status)}'} after {result.seconds:.0f} s"
    if first:
        outcome += f"; rank {first['rank']} was the first to fail, {_status_text(int(first['status']))}"
    # A shell says of a process that a signal ended for example Killed.
    number = _signal(result.status)
    text = f"{result.tail}\n{signal.strsignal(number) or '' if number else ''}"
    cause = fix = ""
    for pattern, recognised, way_out in _failure_patterns():
        if match := pattern.search(text):
            cause, fix = recognised.format(**match.groupdict()), way_out
            break
    if not cause and result.received is not None:
        cause, fix = f"it received {result.received.name}", "run it again with more time"
    rank = int(first["rank"]) if first else None
    return Failure(outcome, cause, fix, rank, _last_lines(result.tail, first))


def _status_text(status: int) -> str:
    """Return an exit status as text."""
    number = _signal(status)
    return f"by signal {number.name}" if number else f"with status {status}"


def _signal(status: int) -> signal.Signals | None:
    """Return the signal that a status means; shells and srun add 128 to its number."""
    try:
        return signal.Signals(-status if status < 0 else status - 128)
    except ValueError:
        return None


def _first_failure(text: str) -> re.Match[str] | None:
    """Return the failure that came first, as torchrun states it.

    torchrun compares whole seconds, and of two it takes the lower rank. A rank that was killed failed before
    those that lost their connection to it in the same second.
    """
    first = _FIRST_FAILURE.search(text)
    if first is None or _was_killed(first):
        return first
    return next(filter(_was_killed, _FAILURE.finditer(text)), first)


def _was_killed(failure: re.Match[str]) -> bool:
    return _signal(int(failure["status"])) in _KILLING


@cache
def _failure_patterns() -> Sequence[tuple[re.Pattern[str], str, str]]:
    text = resources.files(__package__).joinpath("failures.toml").read_text(encoding="utf-8")
    return [
        (re.compile(entry["pattern"], flags=re.MULTILINE), entry["cause"], entry["fix"])
        for entry in tomllib.loads(text)["failure"]
    ]


def _last_lines(text: str, first: re.Match[str] | None) -> tuple[str, ...]:
    """Return the last lines that are not the launcher's; those of the failed rank, if lines name ranks."""
    printed = text.splitlines()
    # The traceback of torchrun itself is left out.
    end = next((number for number, line in enumerate(printed) if _RAISED_BY_LAUNCHER in line), 0)
    heads = (n for n, line in enumerate(printed[:end]) if line.startswith("Traceback (most recent"))
    program_lines = [*printed[: max(heads, default=end)], *printed[end:]]
    lines = [line.rstrip() for line in program_lines if line.strip() and not _LAUNCHER_LINE.search(line)]
    marks = (f"[rank{first['rank']}]:", f"[default{first['local']}]:") if first else ()
    rank_lines = [line for line in lines if line.startswith(marks)] if marks else []
    return tuple((rank_lines or lines)[-SHOWN_LINES:])
