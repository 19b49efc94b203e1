"""Find the traces and other files of a run, told apart by content and not by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.storage import remote
from ccl_bench.trace import copies, formats, identity, naming, walking
from ccl_bench.trace.format import Part, TraceFile
from ccl_bench.trace.walking import files_under

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


HEAD_BYTES = 256 << 10
"""Bytes looked at to recognise a file; a Kineto head with 16 devices takes a tenth of it."""

_SUFFIXES = (".json", ".sqlite", ".pickle", ".pkl")

_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")

TRACE_SUFFIXES = (*_SUFFIXES, *(f"{name}.gz" for name in _SUFFIXES), *_REPORT_SUFFIXES, ".jsonl")


@dataclass(slots=True)
class Found:
    """What lies in a run directory."""

    traces: list[TraceFile] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    """Files that are no trace: cards, side files, and what is not recognised."""
    findings: list[Finding] = field(default_factory=list)


def _trace_files(path: Path, relative: str, ranks: Mapping[str, int]) -> list[TraceFile]:
    """Return the traces in `path`, none where it is not of a known format."""
    head = storage.read_head(path, HEAD_BYTES)
    form = formats.recognised(head)
    if form is None:
        return []
    if form.in_parts is None:
        parts = [Part("", form.identity(head))]
    else:
        with remote.local_copy(path) as local:
            parts = form.in_parts.parts(local)
    window, size = identity.window_in_path(relative), _size(path)
    named = identity.rank_in_name(relative) if form.of_rank and len(parts) == 1 else None
    found = []
    for part in parts:
        name = f"{relative}#{part.id}" if part.id else relative
        rank, source = _ranked(part, ranks.get(name), named, alone=len(parts) == 1)
        world_size = part.identity.world_size
        found.append(TraceFile(path, name, form, rank, source, window, world_size, size, part.id))
    return found


def _ranked(part: Part, mapped: int | None, named: int | None, *, alone: bool) -> tuple[int | None, str]:
    """Return the rank of a trace, and who says so: the file, the map, its name, the order of devices.

    Devices tell ranks apart only inside one report.
    """
    said = (
        (part.identity.rank, "file"),
        (mapped, "map"),
        (named, "name"),
        (None if alone else part.local_rank, "device"),
    )
    return next(((rank, source) for rank, source in said if rank is not None), (None, "unknown"))


def found_in(root: Path, ranks: Mapping[str, int] | None = None) -> Found:
    """Return what lies at `root`, a run directory or a single trace file.

    `ranks` maps relative file names to ranks where the files do not say. Raises InputError
    where there is nothing at `root`, or nothing readable.
    """
    try:
        exists, is_folder = root.exists(), root.is_dir()
    except (OSError, PermissionError) as error:
        raise InputError(f"cannot be opened: {error}", where=str(root), fix="check the address") from error
    if not exists:
        raise InputError("there is no such file or directory", where=str(root), fix="check the path")
    if not is_folder and not remote.is_remote(root) and not root.is_file():
        raise InputError("is neither a file nor a directory", where=str(root), fix="check the path")
    found = Found()
    folder = root if is_folder else root.parent
    files, oddities = files_under(root) if is_folder else ([root], [])
    for path in _without_reports(files) if is_folder else files:
        relative = walking.relative(path, folder)
        if not path.name.lower().endswith(TRACE_SUFFIXES):
            found.others += [path] if _is_there(path) else []
            continue
        try:
            traces = _trace_files(path, relative, ranks or {})
        except InputError as error:
            message = f"{error.message} ({error.fix})" if error.fix else error.message
            found.findings.append(Finding("file-unreadable", "error", message, relative))
            continue
        found.traces += traces
        found.others += [] if traces else [path]
    settled, implausible = naming.settled(found.traces)
    found.traces, doubts = _each_once(settled)
    found.findings += [*doubts, *implausible, *oddities]
    return found


def _size(path: Path) -> int:
    """Return the size of a file on disk; InputError for one that is gone since it was found."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _is_there(path: Path) -> bool:
    """Whether a file exists; also where it may not be looked at, so that whoever reads it says so."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _without_reports(paths: Iterable[Path]) -> list[Path]:
    """Return the files without reports beside which their own export lies, as `nsys stats` leaves it."""
    found = list(paths)
    exports = {
        str(path).removesuffix(".gz").removesuffix(".sqlite") for path in found if ".sqlite" in path.suffixes
    }
    return [p for p in found if p.suffix not in _REPORT_SUFFIXES or str(p.with_suffix("")) not in exports]


def _each_once(traces: Iterable[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces without copies, at most one for each rank and window, and what was left out."""
    kept: list[TraceFile] = []
    findings: list[Finding] = []
    claims: dict[tuple[str, int | None, int | None], TraceFile] = {}
    once, lost = copies.each_once(traces)
    for trace in once:
        key = (trace.form.name, trace.rank, trace.iteration)
        holder = claims.setdefault(key, trace)
        if holder is trace or trace.rank is None:
            kept.append(trace)
            continue
        claimed = f"rank {trace.rank} is claimed by {holder.relative} and by {trace.relative}"
        message = f"{claimed}; the second is left out"
        touches = tuple(sorted(trace.form.tables))
        findings.append(
            Finding("rank-duplicate", "error", message, trace.relative, rank=trace.rank, touches=touches)
        )
    return kept, [*findings, *lost]
