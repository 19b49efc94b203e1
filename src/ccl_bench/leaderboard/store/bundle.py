"""A bundle: the files of one published run, named by the hash of what they hold.

workload_card.yaml   the card as written
results.json         the results, as `ccl-metrics --all --format json` prints them
provenance.json      what was measured, with which versions, from which files
report.json          optional: the report as data, as `ccl-bench report --format json` writes it
history.json         what became of it; the only file that changes, and the only one outside the hash
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.card import card_in_text
from ccl_bench.comparison import fields_of
from ccl_bench.comparison.comparability import field_rules
from ccl_bench.leaderboard.store.history import HISTORY, Event, read_history
from ccl_bench.result import Result, from_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccl_bench.card import CardReading
    from ccl_bench.comparison.comparability import Fields

CARD, RESULTS, PROVENANCE, REPORT = "workload_card.yaml", "results.json", "provenance.json", "report.json"
REQUIRED = (CARD, RESULTS, PROVENANCE)
FILES = (*REQUIRED, REPORT)
"""Every file that a bundle may hold."""

T = TypeVar("T")

ID = re.compile(r"[0-9a-f]{64}")


class TraceFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trace file of the run."""

    file: str
    """Path relative to the run."""
    sha256: str
    size: int
    """Bytes on disk."""
    format: str = ""
    rank: int | None = None


class BundleProvenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """What made a bundle, and from what."""

    run: str
    """Name of the run's directory."""
    tool_version: str
    """Version of ccl-bench."""
    python: str = ""
    platform: str = ""
    made_at: str = ""
    """ISO 8601 in UTC, where it is known: without it the same run published again gives the same bundle."""
    environment: dict[str, str] = {}
    """What the run ran on: processor, driver, versions of libraries."""
    traces: list[TraceFile] = []
    files: dict[str, str] = {}
    """Every other file of the run that a number rests on → its SHA-256."""
    metric_revisions: dict[str, int] = {}
    """Metric → revision of its definition."""
    fields: dict[str, str | int | float | bool | list[str]] = {}
    """What was run, as `comparison.fields_of(card, facts)` gives it with the run at hand."""
    trace_url: str | None = None
    schema_version: int = 1


# Made here and not where it is used: msgspec 0.22 crashes where two threads are the first to need a type.
_PROVENANCE = msgspec.json.Decoder(BundleProvenance)


@dataclass(frozen=True)
class Bundle:
    """One published run as it lies on disk."""

    folder: Path

    @property
    def id(self) -> str:
        """Name of the folder, the hash of its files."""
        return self.folder.name

    @cached_property
    def card(self) -> CardReading:
        """The card, with what is wrong with it."""
        return card_in_text(self.text(CARD), file=CARD)

    @cached_property
    def results(self) -> list[Result]:
        """The results."""
        return _decoded(self.folder / RESULTS, from_json)

    @cached_property
    def provenance(self) -> BundleProvenance:
        """Where they are from."""
        return _decoded(self.folder / PROVENANCE, _PROVENANCE.decode)

    @cached_property
    def history(self) -> list[Event]:
        """What became of it, oldest first."""
        return read_history(self.folder)

    @cached_property
    def fields(self) -> Fields:
        """What was run: the card, with the facts of the run where they are known."""
        stated = {
            name: value for name, value in self.provenance.fields.items() if is_field(name) and value != ""
        }
        return fields_of(self.card.card) | stated

    @property
    def files(self) -> list[str]:
        """Names of its files, sorted, history left out."""
        return sorted(path.name for path in self.folder.iterdir() if path.name != HISTORY)

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


def is_field(name: str) -> bool:
    """Whether a comparison knows a field of this name."""
    return name in field_rules() or name.startswith(
        tuple(f"{whole}." for whole in field_rules() if whole.endswith(".env"))
    )


def bundle_id(folder: Path) -> str:
    """Return the hash that names a bundle: that of what `sha256sum` prints for its files, sorted by name."""
    names = sorted(path.name for path in folder.iterdir() if path.name != HISTORY)
    lines = [f"{storage.sha256(folder / name)}  {name}\n" for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def checked(folder: Path) -> Bundle:
    """Return the bundle in a folder of its name, or raise InputError where files are not what they were."""
    for path in folder.iterdir():
        if path.name not in {*FILES, HISTORY} or path.is_symlink() or not path.is_file():
            raise InputError("does not belong into a bundle", where=str(path), fix="remove it")
    for name in REQUIRED:
        if not (folder / name).exists():
            raise InputError("is missing", where=str(folder / name), fix="publish the run again")
    if bundle_id(folder) != folder.name:
        raise InputError(
            "the files are not those that were published: their hash is another than the folder's name",
            where=str(folder),
            fix="restore them from a backup, or remove the folder and publish the run again",
        )
    return Bundle(folder)


def _decoded(path: Path, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"cannot be used: {error}", where=str(path), fix="publish the run again") from error
