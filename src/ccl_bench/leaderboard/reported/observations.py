"""Observations of one source: what it reported of single runs, in a Parquet file that names the source."""

from __future__ import annotations

import hashlib
import io
import math
import re
import sys
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import encode_json, json_decoder
from ccl_bench.comparison import read_fields
from ccl_bench.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FIELDS: dict[str, type[str] | type[int]] = {
    "model.phase": str,
    "model.model_family": str,
    "model.precision": str,
    "data.global_batch_size": int,
    "data.seq_len": int,
    "data.input_len": int,
    "data.output_len": int,
    "data.dataset": str,
    "data.serving.max_concurrency": int,
    "hardware.device.model": str,
    "hardware.device.device_count": int,
    "hardware.device.node_count": int,
    "framework.name": str,
    "framework.version": str,
    "communication_library.name": str,
    "communication_library.version": str,
    **dict.fromkeys(
        (f"parallelism.{axis}" for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")), int
    ),
}
"""Fields of a card that an observation may have."""

_NEEDED = ("model.phase", "model.model_family", "hardware.device.model")
_NAMES = {"row": str, "measured_at": str, "variant": str}
NUMBER = "number."
"""Prefix of the columns of numbers."""

_KEY = "ccl_bench_source"
_DIGEST = "ccl_bench_sha256"
_SEAL = _DIGEST.encode() + b"\x18\x40"
"""What stands before the digest in a file: its key, and the mark of a text of 64 bytes."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_ADDRESS = re.compile(r"https?://[^\s<>\"']{1,300}")
_LARGEST_BYTES = 64 << 20
MOST_ROWS = 200_000
"""Rows of one source: its numbers take about 2 GB in the index then."""

_LONGEST_TEXT = 1000
"""Characters of a text of a row; pages show 500."""

MISTAKES = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""What reading an observation raises where its file does not have what its program writes."""


class SourceNumber(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number of a source, and how its definition differs from ours."""

    title: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    differs: str = ""
    ours: str = ""
    """Metric of the same definition; empty if there is none, and the number keeps the source's name."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where rows come from."""

    name: str
    title: str
    licence: str
    date: str
    """ISO 8601; of reading, or of the newest row."""
    address: str = ""
    note: str = ""
    numbers: dict[str, SourceNumber] = {}
    models: dict[str, str] = {}
    devices: dict[str, str] = {}
    frameworks: dict[str, str] = {}
    libraries: dict[str, str] = {}

    def metric(self, number: str) -> str:
        """Return the metric that a number of this source has on a board."""
        return self.numbers[number].ours or f"{self.name}.{number}"


_SOURCE = json_decoder(Source)


def decode_source(text: str) -> Source:
    """Return a source from JSON, as the index and the files of rows keep it."""
    return _SOURCE.decode(text)


@dataclass(frozen=True, slots=True)
class Reported:
    """A source with its observations."""

    source: Source
    rows: pl.DataFrame
    """Columns `row`, `measured_at`, `variant`, those of `FIELDS`, and one for each number in its unit."""


def known_source(name: str, /, **changes: str) -> Source:
    """Return a source of the catalog, with some of its texts replaced."""
    return msgspec.convert({"name": name} | _known_sources()[name] | changes, Source)


@cache
def _known_sources() -> dict[str, Any]:
    import tomllib

    return tomllib.loads(resources.files(__package__).joinpath("sources.toml").read_text(encoding="utf-8"))


def check_source(source: Source, where: str) -> None:
    """Raise InputError where the name, date or address of a source cannot be used."""
    is_address = not source.address or _ADDRESS.fullmatch(source.address)
    checks = (
        (
            _NAME.fullmatch(source.name),
            source.name,
            "a name of small letters, digits and hyphens, such as lab-2026",
        ),
        (is_date(source.date), source.date, "a date such as 2026-04-27"),
        (is_address, source.address, "an address that starts with http:// or https://"),
    )
    for is_right, text, expected in checks:
        if not is_right:
            raise InputError(f"{text[:80]!r} is not {expected}", where=where, fix=f"give {expected}")
    if not source.title or not source.licence:
        raise InputError(
            "has no title or no licence", where=where, fix="state both: rows are shown with them"
        )


def is_date(text: str) -> bool:
    """Return whether a text is a day of the calendar as ISO 8601 writes it."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


class SourceRows:
    """Observations of a source that are read one by one; those with mistakes are named and left out."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.mistakes: list[str] = []
        self._rows: list[dict[str, Any]] = []

    def add(
        self,
        where: str,
        row: str,
        fields: Mapping[str, object],
        numbers: Mapping[str, float],
        *,
        variant: str = "",
        measured_at: str | None = None,
    ) -> None:
        """Add an observation; `where` names its place in the file."""
        present = {name: value for name, value in fields.items() if value not in (None, "")}
        reading = read_fields(present)
        problems = [f"{issue.path}: {issue.message}" for issue in reading.errors]
        problems += [f"{name} is missing" for name in _NEEDED if name not in present]
        problems += [
            f"{name} is {value!r}, no quantity"
            for name, value in numbers.items()
            if not 0 <= value < math.inf
        ]
        problems += [
            f"{name} has more than {_LONGEST_TEXT:,} characters"
            for name, value in {"name": row, "variant": variant, **present}.items()
            if isinstance(value, str) and len(value) > _LONGEST_TEXT
        ]
        if not numbers:
            problems.append("has no number")
        if measured_at is not None and not is_date(measured_at):
            problems.append(f"{measured_at} is no date")
        if problems:
            self.leave_out(where, ValueError("; ".join(problems)))
            return
        self._check_count()
        self._rows.append(
            {"row": row, "measured_at": measured_at, "variant": variant}
            | {name: reading.value.get(name) for name in FIELDS}
            | {f"{NUMBER}{name}": float(value) for name, value in numbers.items()}
        )

    def leave_out(self, where: str, error: Exception) -> None:
        """Name an observation that cannot be used, and why."""
        self._check_count()
        problem = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        self.mistakes.append(f"{where}: {problem}")

    def _check_count(self) -> None:
        if len(self._rows) + len(self.mistakes) >= MOST_ROWS:
            raise InputError(
                f"{self.source.name} has more than {MOST_ROWS:,} rows", fix="import a part of them"
            )

    def join(self, other: SourceRows) -> None:
        """Add the observations and mistakes of another file of the same source."""
        self._rows += other._rows
        self.mistakes += other.mistakes

    def reported(self) -> Reported:
        """Return the source with the observations that have no mistake."""
        return Reported(self.source, pl.DataFrame(self._rows, _schema(self.source.numbers), orient="row"))


def _schema(numbers: Iterable[str]) -> dict[str, Any]:
    kinds = {str: pl.String, int: pl.Int64}
    texts = {name: kinds[kind] for name, kind in (_NAMES | FIELDS).items()}
    return texts | {f"{NUMBER}{name}": pl.Float64 for name in numbers}


def read_reported(path: Path) -> Reported:
    """Return the observations of a file; InputError if it is damaged, or not such a file."""
    fix = "restore it from a backup, or remove it and import the source's files again"
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"is larger than {_LARGEST_BYTES >> 20} MiB", where=str(path), fix=fix)
        raw = path.read_bytes()
        if _SEAL not in raw or _sealed(raw) != raw:
            raise InputError("is damaged: its content has another SHA-256", where=str(path), fix=fix)
        source = decode_source(pl.read_parquet_metadata(raw)[_KEY])
        check_source(source, str(path))
        columns = _schema(source.numbers)
        # Types are compared before reading: a list of one row may be larger than any memory.
        if wrong := pl.read_parquet_schema(raw).items() - columns.items():
            names = sorted(name for name, _ in wrong)[:3]
            raise InputError(f"has columns that no source has: {names}", where=str(path), fix=fix)
        rows = pl.read_parquet(raw, n_rows=MOST_ROWS + 1)
        complete = rows.with_columns(pl.lit(None).alias(name) for name in columns if name not in rows.columns)
        complete = complete.select(list(columns)).cast(pl.Schema(columns))
    except InputError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:  # damaged bytes may raise anything
        raise InputError(f"is not a file of reported rows: {error}", where=str(path), fix=fix) from error
    if problem := _problem(complete):
        raise InputError(problem, where=str(path), fix=fix)
    return Reported(source, complete)


def _problem(rows: pl.DataFrame) -> str:
    """Return what `SourceRows` would not have taken."""
    if rows.height > MOST_ROWS:
        return f"has more than {MOST_ROWS:,} rows"
    for column in rows:
        filled = column.drop_nulls()
        if column.dtype == pl.String:
            is_wrong = (filled.str.len_chars() > _LONGEST_TEXT).any()
        else:
            is_wrong = not filled.is_between(0, sys.float_info.max).all()
        if is_wrong or (column.name in {"row", "variant", *_NEEDED} and column.null_count()):
            return f"has a value in {column.name} that cannot be used"
    if not all(map(is_date, rows["measured_at"].drop_nulls().unique())):
        return "has a value in measured_at that is no date"
    return ""


def write_reported(path: Path, reported: Reported) -> None:
    """Write observations in one step; columns without a value are left out."""
    filled = [column.name for column in reported.rows if column.null_count() < reported.rows.height]
    metadata = {_KEY: encode_json(reported.source).decode(), _DIGEST: "0" * 64}
    content = io.BytesIO()
    reported.rows.select(filled).write_parquet(
        content, compression="zstd", compression_level=22, metadata=metadata
    )
    with write_atomically(path, durable=True) as temporary:
        temporary.write_bytes(_sealed(content.getvalue()))


def _sealed(raw: bytes) -> bytes:
    """Return a file with the SHA-256 of itself, whose own digits count as zeros.

    Parquet has no checksum of its own, and a damaged one may end the process that reads it.
    """
    at = raw.rindex(_SEAL) + len(_SEAL)
    digest = hashlib.sha256(raw[:at] + b"0" * 64 + raw[at + 64 :]).hexdigest()
    return raw[:at] + digest.encode() + raw[at + 64 :]


def packaged() -> list[Reported]:
    """Return the sources that come with the package; `scripts/reported_rows.py` makes their files."""
    folder = Path(str(resources.files(__package__))) / "data"
    return [read_reported(path) for path in sorted(folder.glob("*.parquet"))]
