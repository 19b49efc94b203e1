"""Reading of files that others published, whatever program wrote them, into observations by source."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.text import plain
from ccl_bench.leaderboard.reported import inference_x, silicon, upstream
from ccl_bench.leaderboard.reported.observations import (
    Reported,
    Source,
    SourceNumber,
    SourceRows,
    check_source,
    known_source,
)
from ccl_bench.leaderboard.reported.serving_results import MEASURED, add_result
from ccl_bench.metrics import load
from ccl_bench.storage.files import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_LARGEST_BYTES = 64 * MIB
"""Of a table or JSON file: that of 4,068 points has 1.5 MB."""
_CARDS = (".yaml", ".yml", ".toml")


@dataclass(frozen=True, slots=True)
class About:
    """What the caller says about the source; empty where the file or the catalog says it."""

    name: str = ""
    title: str = ""
    address: str = ""
    licence: str = ""
    date: str = ""


def read_files(
    places: Sequence[Path], about: About, card: Path | None = None
) -> tuple[list[Reported], list[str]]:
    """Return what files and folders report, by source, and every mistake in them with its place.

    A damaged file of a folder is a mistake, too. Raises InputError for a single one, and UsageError where a
    source is not described.
    """
    # One for each kind of file: two of them have other numbers, even where the caller gives both one name.
    by_kind: dict[str, SourceRows] = {}
    mistakes: list[str] = []
    for place in places:
        for path in _files(place):
            name = plain(path.name if path == place else path.relative_to(place.parent).as_posix())
            try:
                observations = _read_file(path, name, about, card, by_kind)
            except InputError as error:
                if path == place:
                    raise
                mistakes.append(str(error))  # one damaged file of a folder costs none of the others
                continue
            mistakes += [
                each if each.startswith(name) else f"{name}, {each}" for each in observations.mistakes
            ]
            observations.mistakes.clear()
    return [each.reported() for each in by_kind.values()], mistakes


def _files(place: Path) -> Iterator[Path]:
    """Yield the files of a place, without cards."""
    if not place.is_dir():
        if not place.is_file():
            problem = "is no file" if place.exists() else "does not exist"
            raise UsageError(f"{place} {problem}", fix="give files or folders of results")
        yield place
        return
    for folder, folders, names in os.walk(place):
        folders.sort()
        yield from (
            Path(folder, name)
            for name in sorted(names)
            if not name.startswith(".") and not name.endswith(_CARDS) and Path(folder, name).is_file()
        )


def _read_file(
    path: Path, name: str, about: About, card: Path | None, by_kind: dict[str, SourceRows]
) -> SourceRows:
    if path.stat().st_size > _LARGEST_BYTES:
        fix = "split the table, or import parts of it"
        raise InputError(f"is larger than {_LARGEST_BYTES // MIB} MiB", where=str(path), fix=fix)
    raw = path.read_bytes()
    head = raw[:4096]
    if silicon.MARK.encode() in head.partition(b"\n")[0]:
        try:
            table = silicon.read_silicon(io.StringIO(_text(raw, path), newline=""))
        except csv.Error as error:
            fix = "download the table again"
            raise InputError(f"is no table that can be read: {error}", where=str(path), fix=fix) from error
        return _joined(by_kind, table, about)
    if head.lstrip()[:1] in {b"{", b"["} and (
        f'"{upstream.MARK}"'.encode() in raw or f'"{inference_x.MARK}"'.encode() in raw
    ):
        document = _json(raw, path)
        if isinstance(document, dict) and upstream.MARK in document:
            if not isinstance(document.get("rows"), list):
                raise InputError("has no list of rows", where=str(path), fix="download the file again")
            return _joined(by_kind, upstream.read_upstream(document), about)
        points = document if isinstance(document, list) else [document]
        observations = by_kind.setdefault("inference-x", SourceRows(_described("inference-x", about)))
        for number, point in enumerate(points, start=1):
            where = f"{name}, point {number}" if len(points) > 1 else name
            if isinstance(point, dict):
                inference_x.add_point(observations, where, where, point)
            else:
                observations.leave_out(where, TypeError("is no point of a sweep"))
        return observations
    if not about.name:
        raise UsageError(
            f"{path} does not say where it is from",
            fix="give --source NAME, --title, --licence and --date, and --card for what was run",
        )
    observations = by_kind.setdefault(f"results of {about.name}", SourceRows(_of_results(about)))
    add_result(observations, path, name, card)
    return observations


def _joined(by_kind: dict[str, SourceRows], read: SourceRows, about: About) -> SourceRows:
    source = _described(read.source.name, about)
    joined = by_kind.setdefault(read.source.name, SourceRows(source))
    joined.join(read)
    return joined


def _described(name: str, about: About) -> Source:
    changes = {
        key: getattr(about, key)
        for key in ("name", "title", "address", "licence", "date")
        if getattr(about, key)
    }
    try:
        source = known_source(name, **changes)
    except msgspec.ValidationError as error:
        fix = "give --date, such as 2026-04-27"
        raise UsageError(f"the files of {name} do not say when they were measured", fix=fix) from error
    return _checked(source)


def _of_results(about: About) -> Source:
    """Return the source of benchmark results: its numbers are measured here, from the files."""
    if not about.licence or not about.date:
        raise UsageError("--source needs --licence and --date", fix="state both: rows are shown with them")
    numbers = {
        each.name: SourceNumber(each.name, each.unit, each.better, ours=each.name)
        for each in load(MEASURED)
        if each.name in MEASURED
    }
    source = Source(
        about.name, about.title or about.name, about.licence, about.date, about.address, "", numbers
    )
    return _checked(source)


def _checked(source: Source) -> Source:
    """Return a source; UsageError if its description cannot be used, which is the caller's."""
    try:
        check_source(source, "")
    except InputError as error:
        raise UsageError(error.message, fix=error.fix) from error
    return source


def _text(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8: {error}", where=str(path), fix="save the table as UTF-8") from error


def _json(raw: bytes, path: Path) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"is not JSON: {error}", where=str(path), fix="download the file again") from error
