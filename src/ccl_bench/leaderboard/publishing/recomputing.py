"""Recompute the numbers of a bundle from the files of its run, in a process that may be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.leaderboard.bundle.making import anywhere
from ccl_bench.leaderboard.publishing.measuring import Answer, Request
from ccl_bench.leaderboard.store.bundle import CARD
from ccl_bench.result.step_choice import EVERY_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.store.bundle import Bundle

_LOOK_S = 0.2


class Interrupted(CclBenchError):  # noqa: N818 (an answer, not an error)
    """The worker may not go on: it was told to stop, or the job is not its own any more."""


def recomputed(
    bundle: Bundle, run: Path, scratch: Path, settings: Settings, may_go_on: Callable[[], bool]
) -> Answer:
    """Return what the bundle claims as measured on the files of the run, in a process of its own.

    It may write into the folder `scratch`. `may_go_on` is asked several times a second. Raises InputError
    where there is no answer and another attempt may give one.
    """
    request, answer = scratch / "request.json", scratch / "answer.json"
    asked = Request(
        str(run),
        str(bundle.folder / CARD),
        settings.recompute_bytes,
        settings.recompute_seconds,
        settings.unpacked_bytes,
        next((r.provenance.steps for r in bundle.results if r.provenance.steps), EVERY_STEP),
    )
    request.write_bytes(msgspec.json.encode(asked))
    with _started([str(request), str(answer)], scratch) as process:
        if too_much := _stopped(process, scratch, settings, may_go_on):
            return Answer(error=f"it takes more than {too_much}")
    try:
        found = anywhere(answer.read_bytes(), run, bundle.provenance.run)
        return msgspec.json.decode(anywhere(found, scratch, "the scratch folder"), type=Answer)
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


def _stopped(
    process: subprocess.Popen[bytes], scratch: Path, settings: Settings, may_go_on: Callable[[], bool]
) -> str:
    """Wait until a process ends, and return what it took too much of; empty where it ended by itself."""
    until = time.monotonic() + settings.recompute_seconds
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return ""
        if not may_go_on():
            raise Interrupted("recomputing was interrupted")
        if _bytes_below(scratch) > settings.unpacked_bytes:
            return f"{settings.unpacked_bytes:,} bytes on the disk"
    return f"{settings.recompute_seconds:,} s"


def _bytes_below(folder: Path) -> int:
    """Return what files below a folder take while others come and go in it."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118  as os.walk gives it
    return total
