"""Find the traces and other files of a run, told apart by content and not by name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import remote, storage
from ccl_bench.errors import InputError
from ccl_bench.findings import Finding
from ccl_bench.trace import copies, formats, identity
from ccl_bench.trace.formats import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ccl_bench.trace.formats import Format

HEAD_BYTES = 256 << 10
"""Bytes looked at to recognise a file; a Kineto head with 16 devices takes a tenth of it."""

_SUFFIXES = (".json", ".sqlite", ".pickle", ".pkl")

_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")

TRACE_SUFFIXES = (*_SUFFIXES, *(f"{name}.gz" for name in _SUFFIXES), *_REPORT_SUFFIXES, ".jsonl")
_SKIPPED_FOLDERS = {"__pycache__", "trace_analysis", "node_modules"}


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One trace of a run: a file of one rank in one recording window."""

    path: Path
    relative: str
    """Path below the run, with `/`."""
    form: Format
    rank: int | None
    """Rank, or None where neither file, map nor name tells."""
    rank_source: str
    """`file`, `map`, `name`, `device` or `unknown`."""
    iteration: int | None
    """Number of the recording window, where the path carries one."""
    world_size: int | None
    """Number of ranks that the file says the job had."""
    size: int
    """Size on disk, bytes."""
    part: str = ""
    """Which trace of a file that holds several; empty where it holds one."""


@dataclass(slots=True)
class Found:
    """What lies in a run directory."""

    traces: list[TraceFile] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    """Files that are no trace: cards, side files, and what is not recognised."""
    findings: list[Finding] = field(default_factory=list)


def files_under(root: Path) -> Iterator[Path]:
    """Yield the files below `root` in order, each real file once, links after what they point to.

    A link to nothing is a file too, an unreadable one.
    """
    if remote.is_remote(root):
        yield from sorted((path for path in root.rglob("*") if _is_shown(_relative(path, root))), key=str)
        return
    plain: list[Path] = []
    links: list[Path] = []
    for folder, names in _folders(root):
        for path in (Path(folder, name) for name in sorted(names) if not name.startswith(".")):
            if path.is_symlink():
                links.append(path)
            elif path.is_file():
                plain.append(path)
    seen_files = {_real(path) for path in plain}
    yield from plain
    for link in links:
        real = _real(link)
        if real not in seen_files and (link.is_file() or not link.exists()):
            seen_files.add(real)
            yield link


def _is_shown(relative: str) -> bool:
    """Whether a remote key is a file that a walk over local folders would come to."""
    *folders, name = relative.split("/")
    hidden = name.startswith(".") or any(n.startswith(".") or n in _SKIPPED_FOLDERS for n in folders)
    return bool(name) and not hidden


def _real(path: str | Path) -> str:
    """Return what a path is after its links; itself where the system does not let its links be read."""
    try:
        return os.path.realpath(path)
    except OSError:
        return str(path)


def _folders(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each real folder below `root` once with the names in it, links after what they point to."""
    seen = {str(above) for above in Path(os.path.realpath(root)).parents}
    pending = [root]
    while pending:
        for folder, subfolders, names in os.walk(pending.pop(0)):
            real = _real(folder)
            if real in seen:
                subfolders.clear()
                continue
            seen.add(real)
            subfolders[:] = sorted(n for n in subfolders if n[0] != "." and n not in _SKIPPED_FOLDERS)
            pending += [link for name in subfolders if (link := Path(folder, name)).is_symlink()]
            yield folder, names


def _trace_files(path: Path, relative: str, ranks: Mapping[str, int]) -> list[TraceFile]:
    """Return the traces in `path`, none where it is not of a known format."""
    head = storage.head(path, HEAD_BYTES)
    form = formats.recognised(head)
    if form is None:
        return []
    if form.in_parts is None:
        parts = [Part("", form.identity(head))]
    else:
        with remote.fetched(path) as local:
            parts = form.in_parts.parts(local)
    window, size = identity.window_in_path(relative), path.stat().st_size
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
    found = Found()
    folder = root if is_folder else root.parent
    for path in _without_reports(files_under(root)) if is_folder else [root]:
        relative = _relative(path, folder)
        if not path.name.lower().endswith(TRACE_SUFFIXES):
            found.others += [path] if path.exists() else []
            continue
        try:
            traces = _trace_files(path, relative, ranks or {})
        except InputError as error:
            message = f"{error.message} ({error.fix})" if error.fix else error.message
            found.findings.append(Finding("file-unreadable", "error", message, relative))
            continue
        found.traces += traces
        found.others += [] if traces else [path]
    found.traces, doubts = _each_once(found.traces)
    found.findings += doubts
    return found


def _without_reports(paths: Iterable[Path]) -> list[Path]:
    """Return the files without reports beside which their own export lies, as `nsys stats` leaves it."""
    found = list(paths)
    exports = {
        str(path).removesuffix(".gz").removesuffix(".sqlite") for path in found if ".sqlite" in path.suffixes
    }
    return [p for p in found if p.suffix not in _REPORT_SUFFIXES or str(p.with_suffix("")) not in exports]


def _relative(path: Path, folder: Path) -> str:
    if remote.is_remote(folder):
        return str(path)[len(str(folder)) :].lstrip("/")
    return path.relative_to(folder).as_posix()


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
