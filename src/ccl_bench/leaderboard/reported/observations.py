"""Observations of one source: what it reported of single runs, in a Parquet file that names the source."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ADDRESS = re.compile(r"https?://[^\s<>\"']{1,300}")
_LARGEST_BYTES = 64 << 20
_MOST_ROWS = 200_000
"""Rows of one source: its numbers take about 2 GB in the index then."""


class SourceNumber(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number of a source, and how its definition differs from ours."""

    title: str
    unit: str
    better: str
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


def known_source(name: str, **changes: str) -> Source:
    """Return a source of the catalog, with some of its texts replaced."""
    return msgspec.convert({"name": name} | _known_sources()[name] | changes, Source)


@cache
def _known_sources() -> dict[str, Any]:
    import tomllib

    return tomllib.loads(resources.files(__package__).joinpath("sources.toml").read_text(encoding="utf-8"))


def check_source(source: Source, where: str) -> None:
    """Raise InputError where the name, date or address of a source cannot be used."""
    checks = (
        (_NAME, source.name, "a name of small letters, digits and hyphens, such as lab-2026"),
        (_DATE, source.date, "a date such as 2026-04-27"),
        (_ADDRESS, source.address or "http://none", "an address that starts with http:// or https://"),
    )
    for pattern, text, expected in checks:
        if not pattern.fullmatch(text):
            raise InputError(f"{text[:80]!r} is not {expected}", where=where, fix=f"give {expected}")
    if not source.title or not source.licence:
        raise InputError(
            "has no title or no licence", where=where, fix="state both: rows are shown with them"
        )


class Observations:
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
        if not numbers:
            problems.append("has no number")
        if problems:
            self.mistakes.append(f"{where}: {'; '.join(problems)}")
            return
        self._rows.append(
            {"row": row, "measured_at": measured_at, "variant": variant}
            | {name: reading.value.get(name) for name in FIELDS}
            | {f"{NUMBER}{name}": float(value) for name, value in numbers.items()}
        )

    def join(self, other: Observations) -> None:
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
    fix = "import the source's files again, or restore it from a backup"
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"is larger than {_LARGEST_BYTES >> 20} MiB", where=str(path), fix=fix)
        raw = path.read_bytes()
        source = decode_source(pl.read_parquet_metadata(raw)[_KEY])
        columns = _schema(source.numbers)
        rows = pl.read_parquet(raw, n_rows=_MOST_ROWS + 1)
        if rows.height > _MOST_ROWS:
            raise InputError(f"has more than {_MOST_ROWS:,} rows", where=str(path), fix=fix)
        if unknown := set(rows.columns) - set(columns):
            raise InputError(
                f"has columns that no source has: {sorted(unknown)[:3]}", where=str(path), fix=fix
            )
        check_source(source, str(path))
        complete = rows.with_columns(pl.lit(None).alias(name) for name in columns if name not in rows.columns)
        return Reported(source, complete.select(list(columns)).cast(pl.Schema(columns)))
    except (OSError, KeyError, msgspec.DecodeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"is not a file of reported rows: {error}", where=str(path), fix=fix) from error


def write_reported(path: Path, reported: Reported) -> None:
    """Write observations in one step; columns without a value are left out."""
    filled = [column.name for column in reported.rows if column.null_count() < reported.rows.height]
    metadata = {_KEY: encode_json(reported.source).decode()}
    with write_atomically(path, durable=True) as temporary:
        reported.rows.select(filled).write_parquet(
            temporary, compression="zstd", compression_level=22, metadata=metadata
        )


def packaged() -> list[Reported]:
    """Return the sources that come with the package; `scripts/reported_rows.py` makes their files."""
    folder = Path(str(resources.files(__package__))) / "data"
    return [read_reported(path) for path in sorted(folder.glob("*.parquet"))]
