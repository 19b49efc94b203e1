"""Recomputation of a published run from its traces, in a process with limits of memory, time and size."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import __version__, storage
from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.leaderboard.bundle.build import strip_folder
from ccl_bench.leaderboard.bundle.format import CARD, REPORT
from ccl_bench.leaderboard.publishing.sandbox import ANSWER, SandboxAnswer, SandboxRequest
from ccl_bench.leaderboard.store.rows import measurement_basis
from ccl_bench.result.report_data import from_json as report_from_json
from ccl_bench.result.step_choice import EVERY_STEP
from ccl_bench.storage import remote_errors, remote_path
from ccl_bench.storage.files import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ccl_bench.base.findings import Issue
    from ccl_bench.leaderboard.bundle.format import Bundle, BundleProvenance
    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.result import Result

_SANDBOX = ("-m", "ccl_bench.leaderboard.publishing.sandbox")
"""Arguments of Python for the process that measures."""

_POLL_S = 0.2

_MAX_ERROR = 2_000
"""Characters of an error that are kept: twice as many as the longest path and a sentence need."""
_MAX_THREADS = 4_096
"""Of the process: libraries start one or two for each processor; each thread costs the kernel 16 KiB."""

_NEARLY = 0.9
"""Share of the limit from which a killed process reached it: the kernel counts processor time in ticks."""


class Interrupted(CclBenchError):  # noqa: N818 (an answer, not an error)
    """The worker must stop: it was interrupted, or lost its lease."""


def recompute_run(
    bundle: Bundle, run: Path, scratch: Path, settings: Settings, may_go_on: Callable[[], bool]
) -> SandboxAnswer:
    """Return the results of the bundle, recomputed from the files of the run in a separate process.

    The process may write into the folder `scratch`. `may_go_on` is called several times a second. Raises
    InputError if there is no answer and another attempt may give one.
    """
    request, answer = scratch / "request.json", scratch / "answer.json"
    sandbox_request = SandboxRequest(
        str(run),
        str(bundle.folder / CARD),
        settings.recompute_bytes,
        settings.recompute_seconds,
        settings.unpacked_bytes,
        os.getpid(),
        next((r.provenance.steps for r in bundle.results if r.provenance.steps), EVERY_STEP),
    )
    request.write_bytes(msgspec.json.encode(sandbox_request))
    with _start_sandbox([str(request), str(answer)], scratch) as process:
        if too_much := _wait_or_exceeded(process, scratch, settings, may_go_on):
            return SandboxAnswer(error=f"recomputing takes more than {too_much}")
    # From here on the answer is a stranger's: a trace may have taken over the process that wrote it.
    most = 2 * settings.text_bytes
    try:
        with answer.open("rb") as stream:
            written = stream.read(most + 1)
        if len(written) > most:
            return SandboxAnswer(error=f"recomputing takes more than {most:,} bytes for its answer")
        stripped = strip_folder(written, run, bundle.provenance.run)
        decoded = ANSWER.decode(strip_folder(stripped, scratch, "the scratch folder"))
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"measuring ended with status {process.returncode} and no answer") from error
    return msgspec.structs.replace(decoded, error=decoded.error[:_MAX_ERROR])


@contextlib.contextmanager
def _start_sandbox(arguments: list[str], place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process that measures, and remove all of its children at the end."""
    environment = {
        "PATH": "",
        "HOME": str(place),
        "TMPDIR": str(place),
        "CCL_BENCH_CACHE": str(place / "cache"),
        "POLARS_MAX_THREADS": "2",
        "LC_ALL": "C.UTF-8",
    }
    process = subprocess.Popen(  # noqa: S603  this program's own module
        [sys.executable, "-I", *_SANDBOX, *arguments],
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


def _wait_or_exceeded(
    process: subprocess.Popen[bytes], scratch: Path, settings: Settings, may_go_on: Callable[[], bool]
) -> str:
    """Wait until a process ends, and return the limit that it exceeded; empty if none.

    The kernel kills a process that takes as much time of processors, which threads may take sooner.
    """
    took_too_long = f"{settings.recompute_seconds:,} s"
    until, before_s = time.monotonic() + settings.recompute_seconds, _processor_s()
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            is_killed = process.wait(_POLL_S) == -signal.SIGKILL
            is_late = _processor_s() - before_s >= _NEARLY * settings.recompute_seconds
            return took_too_long if is_killed and is_late else ""
        if not may_go_on():
            raise Interrupted("recomputing was interrupted")
        if too_much := _exceeded(process.pid, scratch, settings):
            return too_much
    return took_too_long


def _exceeded(process: int, scratch: Path, settings: Settings) -> str:
    """Return the limit of its folder, of the disk or of threads that a process exceeds; empty if none."""
    try:
        files, size = _files_below(scratch)
    except OSError as error:  # it is too deep, or may not be read
        raise InputError("measuring left a folder that cannot be read") from error
    if size > settings.unpacked_bytes:
        return f"{settings.unpacked_bytes:,} bytes on the disk"
    if files > settings.files:
        return f"{settings.files:,} files"
    _check_disk(scratch)  # files that were removed while they are open count nowhere else
    with contextlib.suppress(FileNotFoundError):
        if len(os.listdir(f"/proc/{process}/task")) > _MAX_THREADS:  # noqa: PTH208  as walk gives it
            return f"{_MAX_THREADS:,} threads"
    return ""


def _check_disk(place: Path) -> None:
    """Raise InputError, so that the job is tried again, if the disk has too little room for others."""
    try:
        storage.check_space(place, 0)
    except OSError as error:
        raise InputError("the disk of this server is full") from error


def _processor_s() -> float:
    """Return the time of processors that all ended children of this process took, s."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _files_below(folder: Path) -> tuple[int, int]:
    """Return the number and size of files and folders below a folder, while they appear and disappear.

    Raises OSError if a folder cannot be read.
    """
    count = size = 0
    for place, folders, names in walk(folder, _raise_unless_gone):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118  as walk gives it
        count += len(folders) + len(names)
    return count, size


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


_BLOCK_BYTES = 4 << 20
_SIDE_FILE_BYTES = 64 << 20
"""Largest file that is not a trace; bundles do not state its size."""


def fetch_run(
    provenance: BundleProvenance,
    address: str,
    folder: Path,
    settings: Settings,
    may_go_on: Callable[[], bool],
) -> None:
    """Download the files of a run from an address; raise InputError if one is missing or differs."""
    traces = {trace.file: (trace.sha256, trace.size) for trace in provenance.traces}
    others = {name: (digest, _SIDE_FILE_BYTES) for name, digest in provenance.files.items()}
    too_large = InputError(f"the run has more than {settings.unpacked_bytes:,} bytes", where=address)
    left = settings.unpacked_bytes
    if sum(size for _, size in traces.values()) > left:
        raise too_large
    place = remote_path(address, follow_redirects=False)
    for name, (digest, size) in {**traces, **others}.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with remote_errors(place):
            copied = _copy_hashed(place / name, target, size, may_go_on)
        if copied != digest:
            raise InputError("differs from the published file", where=f"{address}/{name}")
        left -= target.stat().st_size
        if left < 0:
            raise too_large


def _copy_hashed(source: Path, target: Path, most: int, may_go_on: Callable[[], bool]) -> str:
    """Copy at most `most` bytes and return the hash of what was copied."""
    digest, left = hashlib.sha256(), most
    with source.open("rb") as stream, target.open("xb") as copy:
        while block := stream.read(min(_BLOCK_BYTES, left + 1)):
            left -= len(block)
            if left < 0:
                raise InputError("is larger than the published file", where=str(source))
            _check_disk(target.parent)
            copy.write(block)
            digest.update(block)
            if not may_go_on():
                raise Interrupted("fetching was interrupted")
    return digest.hexdigest()


TOLERANCE = 1e-9
"""Relative difference up to which two numbers are equal: sums in another order differ by less."""
_ABSOLUTE_TOLERANCE = 1e-12
"""Absolute difference that counts as rounding, for numbers near zero."""
_MAX_SHOWN = 5
"""Differences shown; the rest is counted."""


def differences(bundle: Bundle, answer: SandboxAnswer) -> list[str]:
    """Describe the differences between a bundle and its recomputed results."""
    descriptions = []
    recomputed = {result.metric: result for result in answer.results}
    # Another version may give other details and another report, but not other numbers.
    is_same_version = bundle.provenance.tool_version == __version__
    for claimed in bundle.results:
        why = _result_difference(claimed, recomputed.get(claimed.metric), is_same_version=is_same_version)
        if why:
            descriptions.append(f"{claimed.metric}: {why}")
    stated_fields = bundle.provenance.fields
    for name in sorted(stated_fields.keys() | answer.fields.keys()):
        stated_value, recorded = stated_fields.get(name), answer.fields.get(name)
        if stated_value != recorded:
            descriptions.append(
                f"{name}: the bundle states {_short(stated_value)}, card and traces {_short(recorded)}"
            )
    if REPORT in bundle.files and is_same_version:
        report = report_from_json(bundle.bytes(REPORT))
        place = first_difference(msgspec.to_builtins(report.series), msgspec.to_builtins(answer.series))
        if place is not None:
            descriptions.append(f"the report differs at {_short(place)}")
        if _issue_counts(report.inspection.issues) != _issue_counts(answer.issues):
            descriptions.append("the report has different findings about the data")
    more = [f"and {len(descriptions) - _MAX_SHOWN} more"] if len(descriptions) > _MAX_SHOWN else []
    return descriptions[:_MAX_SHOWN] + more


def _result_difference(claimed: Result, recomputed: Result | None, *, is_same_version: bool) -> str:
    """Return the difference of a claimed number in words; a missing claim is no difference."""
    if claimed.value is None:
        return ""
    if recomputed is None or recomputed.value is None:
        why = recomputed.reason if recomputed else "it was not computed"
        return f"claimed {claimed.value:g} {claimed.unit}, but there is none: {_short(why)}"
    if first_difference(claimed.value, recomputed.value) is not None:
        return f"claimed {claimed.value:.9g}, recomputed {recomputed.value:.9g} {claimed.unit}"
    if measurement_basis(claimed) != measurement_basis(recomputed):
        return (
            f"claimed as {_short(measurement_basis(claimed))}, "
            f"measured as {_short(measurement_basis(recomputed))}"
        )
    if _finding_counts(claimed) != _finding_counts(recomputed):
        return "the findings about the data differ"
    place = first_difference(claimed.details, recomputed.details) if is_same_version else None
    return "" if place is None else f"its details differ at {_short(place)}"


def _finding_counts(result: Result) -> Counter[tuple[str, str]]:
    """Return the findings that make a number doubtful."""
    return Counter((each.code, each.severity) for each in result.findings if each.severity != "note")


def _issue_counts(issues: Iterable[Issue]) -> Counter[tuple[str, str, int]]:
    """Return the findings about the data; those about the card alone have no code."""
    return Counter((each.code, each.severity, each.count) for each in issues if each.code)


def first_difference(claimed: object, recomputed: object) -> str | None:
    """Return the path at which two pieces of plain data differ, such as `per_rank.3`; None if equal."""
    if isinstance(claimed, dict) and isinstance(recomputed, dict):
        if claimed.keys() != recomputed.keys():
            return str(min(map(str, claimed.keys() ^ recomputed.keys())))
        pairs = ((str(key), claimed[key], recomputed[key]) for key in claimed)
    elif isinstance(claimed, list | tuple) and isinstance(recomputed, list | tuple):
        if len(claimed) != len(recomputed):
            return "its length"
        pairs = ((str(index), *pair) for index, pair in enumerate(zip(claimed, recomputed, strict=True)))
    elif isinstance(claimed, float) and isinstance(recomputed, int | float):
        is_near = math.isclose(claimed, recomputed, rel_tol=TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)
        return None if is_near else ""
    else:
        return None if type(claimed) is type(recomputed) and claimed == recomputed else ""
    for name, one, other in pairs:
        if (place := first_difference(one, other)) is not None:
            return f"{name}.{place}".rstrip(".")
    return None


def _short(value: object) -> str:
    return "nothing" if value is None else str(value)[:100]
