"""Recompute the numbers of a bundle from the files of its run, and say where they differ from what it claims."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.errors import CclBenchError, InputError
from ccl_bench.leaderboard.publishing.measuring import Answer, Request
from ccl_bench.leaderboard.store.bundle import CARD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.store.bundle import Bundle
    from ccl_bench.result import Result

TOLERANCE = 1e-9
"""Relative difference up to which two numbers are the same: sums in another order differ by less."""
_LOOK_S = 0.2
_SHOWN = 5
"""Differences that are told; the rest is counted."""


class Interrupted(CclBenchError):
    """The worker may not go on: it was told to stop, or the job is not its own any more."""


def recomputed(
    bundle: Bundle, run: Path, scratch: Path, settings: Settings, may_go_on: Callable[[], bool]
) -> Answer:
    """Return the claimed metrics as measured on the files of the run, in a process of its own.

    It may write into the folder `scratch`. `may_go_on` is asked several times a second. Raises InputError where
    there is no answer and another attempt may give one.
    """
    request, answer = scratch / "request.json", scratch / "answer.json"
    asked = Request(
        str(run),
        str(bundle.folder / CARD),
        [result.metric for result in bundle.results],
        settings.recompute_bytes,
        settings.recompute_seconds,
        settings.unpacked_bytes,
    )
    request.write_bytes(msgspec.json.encode(asked))
    with _started([str(request), str(answer)], scratch) as process:
        if not _ended(process, settings.recompute_seconds, may_go_on):
            return Answer(error=f"it takes more than {settings.recompute_seconds:,} s")
    try:
        return msgspec.json.decode(answer.read_bytes(), type=Answer)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"measuring ended with status {process.returncode} and no answer") from error


@contextlib.contextmanager
def _started(arguments: list[str], place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Give the process that measures, and leave none of it behind."""
    environment = {
        "PATH": "",
        "HOME": str(place),
        "TMPDIR": str(place),
        "CCL_BENCH_CACHE": str(place / "cache"),
        "POLARS_MAX_THREADS": "2",
        "LC_ALL": "C.UTF-8",
    }
    process = subprocess.Popen(  # noqa: S603  this program's own module
        [sys.executable, "-I", "-m", "ccl_bench.leaderboard.publishing.measuring", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ended(process: subprocess.Popen[bytes], seconds: float, may_go_on: Callable[[], bool]) -> bool:
    """Wait until a process ends, and return whether it did in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return True
        if not may_go_on():
            raise Interrupted("recomputing was interrupted")
    return False


def differences(bundle: Bundle, answer: Answer) -> list[str]:
    """Return in words where a bundle claims something else than what was recomputed."""
    found = {result.metric: result for result in answer.results}
    told = [why for claimed in bundle.results if (why := _difference(claimed, found.get(claimed.metric)))]
    stated = bundle.provenance.fields
    told += [
        f"{name}: the bundle says {_short(stated.get(name))}, card and traces say {_short(answer.fields.get(name))}"
        for name in sorted(stated.keys() | answer.fields.keys())
        if stated.get(name) != answer.fields.get(name)
    ]
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return told[:_SHOWN] + more


def _difference(claimed: Result, found: Result | None) -> str:
    """Return how a claimed number differs; a number that is not claimed cannot be wrong."""
    if claimed.value is None:
        return ""
    if found is None or found.value is None:
        why = found.reason if found else "it was not computed"
        return f"{claimed.metric}: claimed {claimed.value:g} {claimed.unit}, and there is none: {_short(why)}"
    if math.isclose(claimed.value, found.value, rel_tol=TOLERANCE, abs_tol=1e-12):
        return ""
    return f"{claimed.metric}: claimed {claimed.value:.9g}, recomputed {found.value:.9g} {claimed.unit}"


def _short(value: object) -> str:
    return "nothing" if value is None else str(value)[:100]
