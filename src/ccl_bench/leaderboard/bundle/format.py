"""A bundle: the files of one published run, named by the hash of their content.

workload_card.yaml   the card as written
results.json         the results, as `ccl-metrics --all --format json` prints them
provenance.json      what was measured, with which versions, from which files
report.json          optional: the report as data, as `ccl-bench report --format json` writes it
history.json         the changes of state; the only file that changes
origin.minisig       optional: the publisher's signature of the files above it

The hash does not cover history and signature.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.text import encode_json, json_decoder, plain
from ccl_bench.card import card_in_text
from ccl_bench.card.comparison_fields import fields_of
from ccl_bench.comparison import read_fields
from ccl_bench.leaderboard.bundle.bounds import bounds, check_nodes
from ccl_bench.result import Result, from_json, report_data
from ccl_bench.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccl_bench.card import Card, Reading
    from ccl_bench.card.comparison_fields import Fields
    from ccl_bench.result.report_data import ReportData

HISTORY, ORIGIN = "history.json", "origin.minisig"
_BESIDE = {HISTORY, ORIGIN}
"""Files that the hash does not cover."""

ID = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[0-9A-F]{16}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class State(StrEnum):
    """The state of a published run."""

    QUARANTINED = "quarantined"
    """Received, not checked, and not visible."""
    SELF_REPORTED = "self_reported"
    """Checked for form; the numbers are the submitter's."""
    VERIFIED = "verified"
    """The numbers were recomputed from the traces and agree."""
    WITHDRAWN = "withdrawn"
    """Withdrawn; kept, but not ranked."""
    SUPERSEDED = "superseded"
    """Replaced by another run; kept, but not ranked."""


LISTED = (State.SELF_REPORTED, State.VERIFIED)
"""States in which a run is listed and ranked."""
SHOWN = (*LISTED, State.WITHDRAWN, State.SUPERSEDED)
"""States in which a run has a page."""


class HistoryEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of state."""

    state: State
    at: str
    """ISO 8601 in UTC, to the second, such as `2026-01-31T12:00:00Z`."""
    by: str = ""
    """The name of who made it."""
    note: str = ""
    """Why."""
    superseded_by: str | None = None
    """Run that replaces this one."""
    key: str = ""
    """Id of the key that signed the origin, where this event brought the signature."""


_DECODER = json_decoder(list[HistoryEvent])


def new_event(
    state: State,
    by: str = "",
    note: str = "",
    *,
    superseded_by: str | None = None,
    key: str = "",
    at: datetime | None = None,
) -> HistoryEvent:
    """Return an event that happens now, or at the time `at`."""
    moment = (at or datetime.now(UTC)).astimezone(UTC)
    return HistoryEvent(state, f"{moment:%Y-%m-%dT%H:%M:%SZ}", by, note, superseded_by, key)


def read_history(folder: Path) -> list[HistoryEvent]:
    """Return the events of a run, oldest first; an untouched bundle is self-reported."""
    path = folder / HISTORY
    try:
        events = _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        return [HistoryEvent(State.SELF_REPORTED, "")]
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"is not a history: {error}", where=str(path), fix="restore it from a backup"
        ) from error
    are_valid = all(
        (not event.at or _TIME.fullmatch(event.at))
        and (not event.key or _KEY.fullmatch(event.key))
        and (event.superseded_by is None or ID.fullmatch(event.superseded_by))
        for event in events
    )
    if not events or not are_valid:
        wrong = "is not a history: it has no events, or a time or an identifier is invalid"
        raise InputError(wrong, where=str(path), fix="restore it from a backup")
    return events


def write_history(folder: Path, events: list[HistoryEvent]) -> None:
    """Replace the history of a run in one step."""
    with write_atomically(folder / HISTORY, durable=True) as temporary:
        temporary.write_bytes(encode_json(events) + b"\n")


def history_stamp(folder: Path | str) -> str:
    """Return a token that changes whenever the history does."""
    try:
        stat = os.stat(f"{folder}/{HISTORY}")  # noqa: PTH116  of 50,000 runs each minute
    except FileNotFoundError:
        return ""
    return f"{stat.st_size}-{stat.st_mtime_ns}"


CARD, RESULTS, PROVENANCE, REPORT = "workload_card.yaml", "results.json", "provenance.json", "report.json"
REQUIRED = (CARD, RESULTS, PROVENANCE)
FILES = (*REQUIRED, REPORT)
"""Every file that the hash of a bundle covers."""
SENT = (*FILES, ORIGIN)
"""Every file that is sent with a bundle."""

T = TypeVar("T")


class ProvenanceTrace(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trace file of the run."""

    file: str
    """Path relative to the run."""
    sha256: str
    size: int
    """Bytes on disk."""
    format: str = ""
    rank: int | None = None


class BundleProvenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """The provenance of a bundle: program, machine and input files."""

    run: str
    """Name of the run's directory."""
    tool_version: str
    """Version of ccl-bench."""
    python: str = ""
    platform: str = ""
    made_at: str = ""
    """ISO 8601 in UTC, if known: without it the same run published again gives the same bundle."""
    environment: dict[str, str] = {}
    """The environment of the run: processor, driver, versions of libraries."""
    traces: list[ProvenanceTrace] = []
    files: dict[str, str] = {}
    """Every other file of the run that a number uses → its SHA-256."""
    metric_revisions: dict[str, int] = {}
    """Metric → revision of its definition."""
    fields: dict[str, str | int | float | bool | list[str]] = {}
    """The workload, as `card.comparison_fields.fields_of(card, facts)` returned it for the run."""
    trace_url: str | None = None
    schema_version: int = 1


_PROVENANCE = json_decoder(BundleProvenance)


@dataclass(frozen=True)
class Bundle:
    """One published run on disk."""

    folder: Path

    @property
    def id(self) -> str:
        """Name of the folder, the hash of its files."""
        return self.folder.name

    @cached_property
    def card(self) -> Reading[Card]:
        """The card, with its issues."""
        return card_in_text(self.text(CARD), file=CARD)

    @cached_property
    def results(self) -> list[Result]:
        """The results."""
        return _decode_file(self.folder / RESULTS, from_json)

    @cached_property
    def provenance(self) -> BundleProvenance:
        """The provenance of the results."""
        return _decode_file(self.folder / PROVENANCE, _PROVENANCE.decode)

    @cached_property
    def report(self) -> ReportData:
        """The report; InputError if the run was published without one."""
        if not (self.folder / REPORT).exists():
            raise InputError("this run was published without a report")
        return _decode_file(self.folder / REPORT, report_data.from_json)

    @cached_property
    def history(self) -> list[HistoryEvent]:
        """Its changes of state, oldest first."""
        return read_history(self.folder)

    @property
    def signed_by(self) -> str | None:
        """Id of the key that signed its origin, which was verified on arrival; None if it is unsigned."""
        return next((event.key for event in reversed(self.history) if event.key), None)

    @cached_property
    def fields(self) -> Fields:
        """The workload: the card, with the facts of the run if known."""
        reading = read_fields(self.provenance.fields)
        for issue in reading.errors:
            raise InputError(
                f"{issue.path}: {issue.message}",
                where=str(self.folder / PROVENANCE),
                fix="publish the run again",
            )
        return fields_of(self.card.value) | reading.value

    @property
    def files(self) -> list[str]:
        """Names of its files, sorted, without history and signature."""
        return _hashed_names(self.folder)

    @property
    def public_files(self) -> list[str]:
        """Names of the public files: its own, and the signature."""
        return [*self.files, *([ORIGIN] if (self.folder / ORIGIN).exists() else [])]

    def text(self, name: str) -> str:
        """Return the text of a file."""
        return self.bytes(name).decode("utf-8", errors="replace")

    def bytes(self, name: str) -> bytes:
        """Return the bytes of a file."""
        path = self.folder / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise storage.unreadable(path, error) from error


def bundle_id(folder: Path) -> str:
    """Return the identifier of a bundle: the hash of the list of its hashes."""
    return hashlib.sha256(hash_list(folder)).hexdigest()


def hash_list(folder: Path) -> bytes:
    """Return the output of `sha256sum` for the files of a bundle, sorted by name."""
    lines = [f"{storage.sha256(folder / name)}  {name}\n" for name in _hashed_names(folder)]
    return "".join(lines).encode()


def _hashed_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in _BESIDE)


def open_bundle(folder: Path) -> Bundle:
    """Return the bundle in the folder of its name, or raise InputError if files have changed."""
    for path in folder.iterdir():
        if path.name not in {*SENT, HISTORY} or path.is_symlink() or not path.is_file():
            raise InputError("does not belong in a bundle", where=str(path), fix="remove it")
    for name in REQUIRED:
        if not (folder / name).exists():
            raise InputError("is missing", where=str(folder / name), fix="publish the run again")
    if bundle_id(folder) != folder.name:
        raise InputError(
            "the files changed after they were published: their hash differs from the folder's name",
            where=str(folder),
            fix="restore them from a backup, or remove the folder and publish the run again",
        )
    return Bundle(folder)


def _decode_file(path: Path, decode: Callable[[bytes], T]) -> T:
    try:
        raw = path.read_bytes()
        check_nodes(path.name, raw)
        return decode(raw)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"cannot be used: {error}", where=str(path), fix="publish the run again") from error


MIB, GIB = 1 << 20, 1 << 30

NAME_BYTES = 240
"""Longest name of a file below a run; the header of an archive has room for 255 with its folder."""
FILE_NAME_BYTES = 100
"""Longest last part of a name that fits into the header of an archive."""
DEPTH = 16
"""Largest number of parts of a name."""

RUN_FOLDER = "run"
"""Folder of an archive that holds the files of the run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size of a bundle."""

    archive_bytes: int = 4 * GIB
    """Of the compressed archive."""
    unpacked_bytes: int = 20 * GIB
    """Of the unpacked contents."""
    files: int = 10_000
    """In the archive."""
    text_bytes: int = 32 * MIB
    """Of the results, and of the report: a run of 1,024 ranks has 19.7 and 24.2 MB, see `bounds.toml`."""

    def of(self, name: str) -> int:
        """Return the largest size of a file of a bundle in bytes."""
        if name.startswith(f"{RUN_FOLDER}/"):
            return self.unpacked_bytes
        return (name in bounds() and bounds()[name].bytes) or self.text_bytes


def name_problem(name: str) -> str:
    """Return the reason why the name of a file below a run is not allowed; empty if it is."""
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return "leads out of the run or is not a plain path"
    if name != plain(name) or "\\" in name:
        return "holds characters that are not printable, or a backslash"
    if any(part.startswith(".") for part in parts):
        return "is hidden"
    if len(parts) > DEPTH or len(name.encode()) > NAME_BYTES or len(parts[-1].encode()) > FILE_NAME_BYTES:
        return f"is longer than {NAME_BYTES} bytes, {FILE_NAME_BYTES} in its last part, or {DEPTH} folders"
    return ""
