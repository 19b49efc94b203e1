"""Finding the traces and other files of a run, by content and not by name."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import NO_NUMBER, Finding
from ccl_bench.base.registry import did_you_mean
from ccl_bench.storage import content_sha256, is_remote, journals_of, local_copy
from ccl_bench.storage.files import walk
from ccl_bench.trace import file_names, formats
from ccl_bench.trace.formats import Format, TraceFile, TracePart
from ccl_bench.trace.node_ranks import with_ranks_of_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

_SKIPPED_FOLDERS = {"__pycache__", "trace_analysis", "node_modules"}

MOST_FILES = 50_000
"""Files that a run may hold: 1,024 ranks with 48 each. Looking at so many takes 3 s."""

_NAMED = 3
"""Files that a message names."""

_LIKELY = 0.6
"""Least similarity of a file name to a misspelt one."""

_CANDIDATES = 1000
"""Files of a folder that are looked at for one with a like name."""


def files_under(root: Path) -> tuple[list[Path], list[Finding]]:
    """Return the files below `root` in order, and findings on closed folders and on links out of the run.

    Each real file is there once, links after targets. A link to nothing or to a device, and a file that the
    system does not let be looked at, are files too, unreadable ones. Raises InputError if `root` may not be
    entered, or holds so many files that it cannot be a run.
    """
    if is_remote(root):
        keys = []
        for path in root.rglob("*"):
            *folders, name = relative_name(path, root).split("/")
            is_hidden = any(part.startswith(".") for part in (*folders, name))
            if name and not is_hidden and not _SKIPPED_FOLDERS & {*folders}:
                keys.append(path)
        return sorted(keys, key=str), []
    if storage.is_of_the_kernel(root):
        message = "is a view of the operating system's kernel, not a run"
        raise InputError(message, where=str(root), fix="name the directory of the run itself")
    plain: dict[str, Path] = {}
    links: list[Path] = []
    errors: list[OSError] = []
    for folder, real, names in _folders(root, errors):
        for path in (Path(folder, name) for name in sorted(names) if not name.startswith(".")):
            if _is_link(path):
                links.append(path)
            elif not _is_special(path):
                plain[f"{real}/{path.name}"] = path
        if len(plain) + len(links) > MOST_FILES:
            message = f"holds more than {MOST_FILES:,} files, so it is not the directory of one run"
            raise InputError(message, where=str(root), fix="name the directory of the run itself")
    for link in links:
        plain.setdefault(_real(link), link)
    findings = []
    for error in errors:
        if error.filename == str(root):
            raise storage.unreadable(root, error) from error
        name = relative_name(Path(error.filename), root)
        message = f"the folder cannot be read: {error.strerror}"
        findings.append(Finding("file-unreadable", "error", message, name))
    root_prefix = _real(root).rstrip("/") + "/"
    outside = [path for real, path in plain.items() if not real.startswith(root_prefix)]
    if count := len(outside):
        named = [relative_name(path, root) for path in outside[:_NAMED]]
        subject = "1 file is a link that leads" if count == 1 else f"{count} files are links that lead"
        message = f"{subject} out of the run: {', '.join(named)}" + (", ..." if count > _NAMED else "")
        findings.append(Finding("links-outside", "note", message, named[0], count=count, touches=NO_NUMBER))
    return list(plain.values()), findings


def _real(path: str | Path) -> str:
    """Return the target of a path's links; itself if the system does not let its links be read."""
    try:
        return os.path.realpath(path)
    except OSError:
        return str(path)


def _is_special(path: Path) -> bool:
    """Whether a path, which is no link, surely is no file but a device, a pipe or a socket."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:
        return False


def _folders(root: Path, errors: list[OSError]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each real folder below `root` once, its path after its links, and the names in it.

    Links to folders come after their targets. Folders that cannot be listed go to `errors`.
    """
    seen = {str(above) for above in Path(os.path.realpath(root)).parents}
    pending = [root]
    while pending:
        start = pending.pop(0)
        real_start = _real(start).rstrip("/")
        for folder, subfolders, names in walk(start, onerror=errors.append):
            real = os.path.normpath(f"{real_start}/{folder[len(str(start)) :]}")  # only `start` is a link
            if real in seen:
                subfolders.clear()
                continue
            seen.add(real)
            subfolders[:] = sorted(n for n in subfolders if n[0] != "." and n not in _SKIPPED_FOLDERS)
            links = [link for name in subfolders if _is_link(link := Path(folder, name))]
            pending += [link for link in links if not storage.is_of_the_kernel(link)]
            yield folder, real, names


def relative_name(path: Path, folder: Path) -> str:
    """Return a path below a folder, local or remote, with `/`."""
    if is_remote(folder):
        return str(path)[len(str(folder)) :].lstrip("/")
    return path.relative_to(folder).as_posix()


_BEGINNING = 64 << 10
"""Bytes, decompressed, in which traces of different ranks are different already."""


def _without_copies(traces: Sequence[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces without byte-for-byte copies, and a finding for each that has taken another's place.

    Of copies the one in a numbered window is kept, and rather one with the name of its rank. Two ranks may
    write the same where their names alone state whose a file is.
    """
    unique = [trace for trace in traces if trace.form.may_be_alike]
    groups = [[trace for trace in traces if not trace.form.may_be_alike]]
    keys: tuple[Callable[[TraceFile], Hashable], ...] = (
        lambda t: (t.size, t.part, t.rank if t.form.ends_in_rank else None),
        lambda t: _unless_gone(t, lambda path: sha256(storage.read_head(path, _BEGINNING)).digest()),
        lambda t: _unless_gone(t, content_sha256),
    )
    for key in keys:  # only files of one size that begin alike are read whole
        groups = [part for group in groups for part in (_grouped(group, key) if len(group) > 1 else [group])]
    lost: list[Finding] = []
    for copies in filter(None, groups):
        best, *duplicates = sorted(
            copies, key=lambda t: (t.iteration is None, _other_rank(t) is not None, t.relative)
        )
        unique.append(best)
        for copy in duplicates:
            if (rank := _other_rank(copy)) is not None:
                fate = f"is a copy of {best.relative}, and the trace of rank {rank} is lost"
                message = f"{copy.relative} {fate}"
                lost.append(Finding("trace-overwritten", "error", message, copy.relative, rank=rank))
    return sorted(unique, key=lambda t: t.relative), lost


def _grouped(traces: Sequence[TraceFile], key: Callable[[TraceFile], Hashable]) -> list[list[TraceFile]]:
    groups: dict[Hashable, list[TraceFile]] = defaultdict(list)
    for trace in traces:
        groups[key(trace)].append(trace)
    return list(groups.values())


def _unless_gone(trace: TraceFile, look: Callable[[Path], Hashable]) -> Hashable:
    """Return the result of a look at a trace; one that can no longer be read matches no other.

    The reader of its tables reports it.
    """
    try:
        return look(trace.path)
    except (OSError, InputError):
        return trace.relative


def _other_rank(trace: TraceFile) -> int | None:
    """Return the rank that a trace's name states, where its content is another's."""
    named_rank = file_names.rank_in_name(trace.relative) if trace.form.of_rank and not trace.part else None
    if named_rank is None or trace.rank in {None, named_rank}:
        return None
    return (
        named_rank if file_names.says_rank(trace.relative) or named_rank < (trace.world_size or 0) else None
    )


HEAD_BYTES = 256 << 10
"""Bytes looked at to recognise a file; a Kineto head with 16 devices takes a tenth of it."""


@dataclass(slots=True)
class DiscoveredFiles:
    """The files of a run directory."""

    traces: list[TraceFile] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    """Files that are no trace: cards, side files, and what is not recognised."""
    findings: list[Finding] = field(default_factory=list)


def _trace_files(path: Path, relative: str, ranks: Mapping[str, int]) -> list[TraceFile]:
    """Return the traces in `path`, none if it is not of a known format."""
    head = storage.read_head(path, HEAD_BYTES)
    journals = journals_of(path) if head.startswith(storage.SQLITE_MAGIC) else []
    if journals:
        from ccl_bench.storage.journals import recovered

        with local_copy(path) as local, recovered(local, relative) as whole:
            form, parts = _form_and_parts(storage.read_head(whole.path, HEAD_BYTES), whole.path)
    else:
        form, parts = _form_and_parts(head, path)
    if form is None:
        return []
    window, is_only_part = file_names.window_in_path(relative), len(parts) == 1
    try:
        size = sum(each.stat().st_size for each in (path, *journals))
    except OSError as error:  # removed meanwhile
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    rank_of_name = file_names.rank_at_end if form.ends_in_rank else file_names.rank_in_name
    named_rank = rank_of_name(relative) if form.of_rank and is_only_part else None
    traces = []
    for part in parts:
        name = f"{relative}#{part.id}" if part.id else relative
        sources = (
            (part.identity.rank, "file"),
            (ranks.get(name), "map"),
            (named_rank, "name"),
            # The order of devices distinguishes ranks only inside one report.
            (None if is_only_part else part.local_rank, "device"),
        )
        rank, source = next((pair for pair in sources if pair[0] is not None), (None, "unknown"))
        world_size, recording = part.identity.world_size, part.identity.recording
        traces.append(TraceFile(path, name, form, rank, source, window, world_size, size, part.id, recording))
    return traces


def _form_and_parts(head: bytes, path: Path) -> tuple[Format | None, list[TracePart]]:
    """Return the format of a file with this beginning, and what it holds; None if it is not known."""
    form = formats.recognised(head)
    if form is None or form.in_parts is None:
        return form, [TracePart("", formats.identified(form, head))] if form else []
    with local_copy(path) as local:
        return form, form.in_parts.parts(local)


def _nearest(missing: Path) -> str:
    """Return the fix for a path that leads nowhere, with the likely path."""
    if is_remote(missing):
        return "check the address"
    ways = [missing, *missing.parents]
    first = next((way for way in ways if way.absolute().parent.is_dir()), missing)
    folder = first.absolute().parent
    names = islice(os.scandir(folder), _CANDIDATES) if os.access(folder, os.R_OK) else ()
    hint = did_you_mean(first.name, [entry.name for entry in names], cutoff=_LIKELY)
    where = "" if first == missing else f": there is no {first}"
    return f"check the path{where}" + (f"; {hint}" if hint else "")


def discover_traces(
    root: Path, ranks: Mapping[str, int] | None = None, among: Sequence[Path] | None = None
) -> DiscoveredFiles:
    """Return the files at `root`, a run directory or a single trace file.

    `ranks` maps relative file names to ranks where the files do not say; of a directory only the files
    `among` some count, where these are given. Raises InputError if there is nothing at `root`, or
    nothing readable.
    """
    try:
        exists, is_folder = root.exists(), root.is_dir()
    except (OSError, PermissionError) as error:
        raise InputError(f"cannot be opened: {error}", where=str(root), fix="check the address") from error
    if not exists:
        raise InputError("there is no such file or directory", where=str(root), fix=_nearest(root))
    if not is_folder and not is_remote(root) and not root.is_file():
        raise InputError("is neither a file nor a directory", where=str(root), fix="check the path")
    run_files = DiscoveredFiles()
    folder = root if is_folder else root.parent
    files, oddities = files_under(root) if is_folder and among is None else ([*(among or (root,))], [])
    if is_folder:  # a file beside which its own export lies, as `nsys stats` leaves it, is not read
        exports = [pair for form in formats.load() for pair in form.exports]
        names = {str(path).removesuffix(".gz") for path in files}
        files = [
            path
            for path in files
            if not any(
                str(path).endswith(suffix) and str(path).removesuffix(suffix) + export in names
                for suffix, export in exports
            )
        ]
    suffixes = formats.suffixes()
    for path in files:
        relative = relative_name(path, folder)
        if not path.name.lower().endswith(suffixes):
            with contextlib.suppress(PermissionError):  # what may not be looked at is reported by its reader
                if not path.exists():
                    continue
            run_files.others.append(path)
            continue
        try:
            traces = _trace_files(path, relative, ranks or {})
        except InputError as error:
            message = f"{error.message} ({error.fix})" if error.fix else error.message
            run_files.findings.append(Finding("file-unreadable", "error", message, relative))
            continue
        run_files.traces += traces
        run_files.others += [] if traces else [path]
    with_ranks, implausible = file_names.assign_ranks_and_windows(run_files.traces)
    run_files.traces, doubts = _one_of_each_rank(with_ranks)
    run_files.findings += [*doubts, *implausible, *oddities]
    return run_files


def _one_of_each_rank(traces: Sequence[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces without copies, at most one for each rank and window, and findings on the others.

    Linked Execution Traces are beside those that torch recorded, as are those of another format. Of the
    forms of one recording the one whose suffix its format names first stays.
    """
    remaining: list[TraceFile] = []
    findings: list[Finding] = []
    claims: dict[tuple[Hashable, ...], TraceFile] = {}
    unique, lost = _without_copies(traces)
    if len({(t.form.name, t.rank, t.iteration) for t in unique}) < len(unique):
        unique, assumed = with_ranks_of_nodes(unique)
        findings += assumed
    by_suffix: list[tuple[int, str, TraceFile]] = []
    for trace in unique:
        name, suffixes = trace.path.name.lower(), trace.form.suffixes
        place = next((n for n, suffix in enumerate(suffixes) if name.endswith(suffix)), len(suffixes))
        by_suffix.append((place if trace.recording else 0, trace.relative, trace))
    for _, _, trace in sorted(by_suffix, key=lambda item: item[:2]):
        key = (trace.form.name, file_names.is_linked(trace), trace.rank, trace.iteration)
        holder = claims.setdefault(key, trace)
        if holder is trace or trace.rank is None:
            remaining.append(trace)
            continue
        if trace.recording and trace.recording == holder.recording:
            continue
        claim = f"{holder.relative} and {trace.relative} are both of rank {trace.rank}"
        message = f"{claim}; the second is left out"
        touches = tuple(sorted(trace.form.tables))
        findings.append(
            Finding("rank-duplicate", "error", message, trace.relative, rank=trace.rank, touches=touches)
        )
    return sorted(remaining, key=lambda trace: trace.relative), [*findings, *lost]
