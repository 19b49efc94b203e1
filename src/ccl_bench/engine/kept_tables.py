"""Cache of the tables of one trace, so that the same question needs neither parsing nor arithmetic again.

An answer lies in the folder of the trace's raw tables, which is named after the file and its times. Its own
name covers all else that it comes from: what was wanted, the chosen steps, what the run says of a trace, and
the program itself. Tables of other packages are not kept, because nothing shows whether their code changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import ccl_bench
from ccl_bench import storage
from ccl_bench.analysis.derived import DERIVED, computation_order
from ccl_bench.base.findings import Finding  # noqa: TC001  msgspec reads the types of fields
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import json_decoder
from ccl_bench.run.trace_tables import (
    Sketch,
    TraceTables,
)
from ccl_bench.trace.cache import cache_folder
from ccl_bench.trace.content import disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.trace.formats import TraceFile

MOST_ANSWERS = 16
"""Questions about one trace that are kept, the latest."""

MOST_BYTES = 256 << 20
"""Size of tables beyond which computing them again is no loss."""

_SUFFIX = ".answer"

_OF_NUMBERS = ("analysis", "base", "catalog", "engine", "result", "run", "schema", "trace")
"""Packages that numbers of one trace come from."""


class _Frame(msgspec.Struct, array_like=True):
    """One table that is kept."""

    device: int
    """0 for the tables of the trace, n for those of its n-th further device."""
    name: str
    size: int
    """Bytes."""


class _AnswerHeader(msgspec.Struct):
    """What is kept of a trace beside its tables: the fields of `TraceTables`."""

    frames: list[_Frame]
    devices_beside: int
    findings: list[Finding]
    sha256: str
    rank: int | None
    world_size: int | None
    attributes: dict[str, str]
    on_device: bool | None
    sign_of_device: str
    communicates: bool | None
    steps_from: str
    filled: frozenset[str]
    devices: frozenset[str]
    span_ns: tuple[int, int] | None
    sketch: Sketch | None
    whole_steps: frozenset[int] | None
    recorded_steps: tuple[int, ...]
    range_names: tuple[str, ...]


_FIELDS = [name for name in _AnswerHeader.__struct_fields__ if name not in {"frames", "devices_beside"}]

_DECODER = json_decoder(_AnswerHeader)


def kept_file(trace: TraceFile, wanted_tables: Sequence[str], question: Sequence[object]) -> Path | None:
    """Return the file that keeps the answer to a question about a trace; None if none is to be kept.

    `question` is all that the answer comes from beside the file, the wanted tables and the program.
    """
    modules = {DERIVED.get(name).compute.__module__ for name in computation_order(wanted_tables)}
    if not all(module.startswith(f"{ccl_bench.__name__}.") for module in modules):
        return None
    form = trace.form
    trace_facts = (trace.relative, trace.rank, trace.rank_source, trace.world_size, trace.iteration)
    key = (
        _program(),
        tuple(wanted_tables),
        tuple(question),
        trace_facts,
        sorted(form.tables),
        form.step_marker,
    )
    try:
        place = cache_folder(trace)
    except OSError:
        return None
    return place / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}{_SUFFIX}"


@cache
def _program() -> tuple[str, ...]:
    """Return an identity of the program's code: sizes and times of its files, as for Python's byte code."""
    package_folder = Path(ccl_bench.__file__).parent
    seen = hashlib.sha256()
    for package in _OF_NUMBERS:
        for folder, folders, files in os.walk(package_folder / package):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                with contextlib.suppress(OSError):  # an editor's link to nowhere
                    status = Path(folder, name).stat()
                    seen.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return ccl_bench.__version__, pl.__version__, seen.hexdigest()


def load_answer(path: Path, trace: TraceFile) -> TraceTables | None:
    """Return the answer kept at `path`; None if there is none, or it is damaged, and then it is removed."""
    try:
        written = path.read_bytes()
    except OSError:
        return None
    try:
        begins = written.index(b"\n") + 1
        kept_bytes = memoryview(written)[begins:]
        if written[: begins - 1] != _check(kept_bytes):
            raise ValueError("other bytes than were kept")
        head_ends = written.index(b"\n", begins)
        header = _DECODER.decode(written[begins:head_ends])
        rest = memoryview(written)[head_ends + 1 :]
        tables: list[dict[str, pl.DataFrame]] = [{} for _ in range(header.devices_beside + 1)]
        start = 0
        for frame in header.frames:
            tables[frame.device][frame.name] = pl.read_ipc_stream(
                io.BytesIO(rest[start : start + frame.size])
            )
            start += frame.size
    except (Exception, pl.exceptions.PanicException):  # damaged bytes may raise anything
        with contextlib.suppress(OSError):  # a cache that may only be read
            path.unlink(missing_ok=True)
        return None
    fields = {name: getattr(header, name) for name in _FIELDS}
    return TraceTables(trace, tables=tables[0], further=tables[1:], **fields)


def save_answer(path: Path, answer: TraceTables) -> None:
    """Keep the outcome of a trace at `path`; a cache that cannot be written is no error."""
    if sum(table.estimated_size() for _, _, table in _frames(answer)) > MOST_BYTES:
        return
    with contextlib.suppress(*disk_errors()):
        if path.parent.is_dir():
            with storage.write_atomically(path) as temporary:
                temporary.write_bytes(_packed(answer))
            answers = [(each.stat().st_mtime_ns, each) for each in path.parent.glob(f"*{_SUFFIX}")]
            for _, older in sorted(answers, reverse=True)[MOST_ANSWERS:]:
                older.unlink(missing_ok=True)


def _packed(answer: TraceTables) -> bytes:
    frames, rest = [], io.BytesIO()
    for device, name, table in _frames(answer):
        start = rest.tell()
        table.write_ipc_stream(rest)
        frames.append(_Frame(device, name, rest.tell() - start))
    fields = {name: getattr(answer, name) for name in _FIELDS}
    header = _AnswerHeader(frames, len(answer.further), **fields)
    kept_bytes = msgspec.json.encode(header) + b"\n" + rest.getvalue()
    return _check(kept_bytes) + b"\n" + kept_bytes


def _check(kept_bytes: bytes | memoryview) -> bytes:
    return f"{zlib.crc32(kept_bytes):08x}".encode()


def _frames(answer: TraceTables) -> Iterator[tuple[int, str, pl.DataFrame]]:
    for device, tables in enumerate((answer.tables, *answer.further)):
        for name, table in tables.items():
            yield device, name, table
