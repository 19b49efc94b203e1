"""Redaction of runs: secrets block publishing, and Nsight Systems exports are copied in part.

An export is copied into a new database without environment, output, host and other processes, so that no
unused page contains them. A run that needs no change is published without a copy.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import sqlite3
import tomllib
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.card import template
from ccl_bench.collect.environment.machine import FILE_NAME
from ccl_bench.leaderboard.bundle.build import input_files, run_name
from ccl_bench.leaderboard.bundle.format import CARD
from ccl_bench.run import open_run
from ccl_bench.run.completeness import RANK_MAP
from ccl_bench.storage.journals import recovered
from ccl_bench.trace.formats.nsys.export import export_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ccl_bench.run import Run

_BLOCK_BYTES = 4 << 20
_OVERLAP_BYTES = 1 << 10
"""Longest match that is found across two blocks."""
_MIN_NAME = 4
"""Shortest name of this machine to search for; shorter ones occur everywhere."""


@dataclass(frozen=True, slots=True)
class Disclosure:
    """Personal data or a secret in a file."""

    file: str
    what: str
    example: str
    """Text as found; a secret is cut short."""
    count: int
    is_secret: bool


@dataclass(frozen=True, slots=True)
class _Pattern:
    name: str
    hints: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    is_secret: bool


def find_disclosures(files: Mapping[str, Path]) -> list[Disclosure]:
    """Return the personal data and secrets in files, secrets first, each kind once for each file."""
    disclosures = []
    for name, path in files.items():
        counts: Counter[tuple[_Pattern, bytes]] = Counter()
        with storage.open_file(path) as opened:
            stream = _without_template(opened) if name == CARD else opened
            for block, seen in _blocks(stream, path):
                for kind in _patterns():
                    if any(hint in block for hint in kind.hints):
                        ends = range(seen, len(block))
                        counts.update((kind, m[0]) for m in kind.pattern.finditer(block) if m.end() in ends)
        for kind in _patterns():
            matches = {text: count for (other, text), count in counts.items() if other is kind}
            if matches:
                text = min(matches).decode("utf-8", errors="replace")
                example = f"{text[:8]}..." if kind.is_secret else text
                total = sum(matches.values())
                disclosures.append(Disclosure(name, kind.name, example, total, kind.is_secret))
    return sorted(disclosures, key=lambda each: not each.is_secret)


def _without_template(card: BinaryIO) -> BinaryIO:
    """Return a card without the comments of the template: this program wrote them, and they name nobody."""
    return BytesIO(_template_comments().sub(b"", card.read()))


@cache
def _template_comments() -> re.Pattern[bytes]:
    comments = {line[line.index("#") :] for line in template().splitlines() if "#" in line}
    return re.compile(rb"(?m)(?<!\S)(?:" + "|".join(map(re.escape, comments)).encode() + rb")$")


def refuse_secrets(disclosures: Iterable[Disclosure]) -> None:
    """Raise InputError if a file holds a secret."""
    secrets = [each for each in disclosures if each.is_secret]
    if not secrets:
        return
    first, more = secrets[0], f", and {len(secrets) - 1} more" if len(secrets) > 1 else ""
    raise InputError(
        f"holds {first.what} ({first.example}){more}; nothing was published",
        where=first.file,
        fix="remove it from the file, and revoke it if others could read it",
    )


def _blocks(stream: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield a file in blocks that overlap, each with the number of bytes that were seen before.

    A match that reaches the end of a block may continue, and is found whole in the next one; the last block
    ends with a byte that no pattern matches. A damaged file is read up to the damage.
    """
    rest = b""
    try:
        while block := stream.read(_BLOCK_BYTES):
            yield rest + block, len(rest)
            rest = (rest + block)[-_OVERLAP_BYTES:]
    except PermissionError as error:
        raise storage.unreadable(path, error) from error
    except storage.DAMAGED:
        pass
    yield rest + b"\0", len(rest)


@cache
def _patterns() -> tuple[_Pattern, ...]:
    raw = tomllib.loads(
        resources.files(__package__).joinpath("privacy_patterns.toml").read_text(encoding="utf-8")
    )
    patterns = [
        _Pattern(
            rule["name"],
            tuple(hint.encode() for hint in rule["hint"]),
            re.compile(rule["pattern"].encode()),
            group == "secret",
        )
        for group in ("secret", "personal")
        for rule in raw[group]
    ]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    host = socket.gethostname().partition(".")[0]
    # "localhost" and "root" name no machine and no person.
    for name, text, common in (("this machine's name", host, "localhost"), ("your user name", user, "root")):
        if len(text) >= _MIN_NAME and text != common:
            word = re.escape(text.encode())
            pattern = re.compile(rb"(?<![A-Za-z0-9])" + word + rb"(?![A-Za-z0-9])")
            patterns.append(_Pattern(name, (text.encode(),), pattern, is_secret=False))
    return tuple(patterns)


_PROCESS = ~0xFFFFFF
"""Part of a `globalTid` that is its process's `globalPid`."""
_SETTING = re.compile(r'(?<![A-Z0-9_])([A-Z0-9_]++)="?(\d{1,7})"?(?=[;\0]|\Z)')
_TYPES = {"INTEGER", "REAL", "TEXT", "BLOB"}


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    columns: dict[str, str]
    """Column → type."""

    @property
    def listed(self) -> str:
        return ", ".join(map(_quote, self.columns))


def redact_export(export: Path, target: Path) -> None:
    """Write the publishable part of an export, an SQLite database, to a new file."""
    with closing(sqlite3.connect(f"{target.absolute().as_uri()}?mode=rwc", uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema=OFF")
        is_kept = re.compile(_rules()["messages"])
        connection.create_function(
            "is_kept", 1, lambda text: bool(is_kept.search(_decode(text))), deterministic=True
        )
        connection.create_function("ranks_of", 2, _rank_variables, deterministic=True)
        try:
            with recovered(export, str(export)) as whole:
                source = f"{whole.path.absolute().as_uri()}?mode=ro&immutable=1"
                connection.execute("ATTACH ? AS source", (source,))
                _copy_tables(connection)
                connection.commit()
                connection.execute("DETACH source")
        except sqlite3.Error as error:
            fix = "export the report again, or publish without the traces"
            raise InputError(f"cannot be copied: {error}", where=str(export), fix=fix) from error


def _copy_tables(connection: sqlite3.Connection) -> None:
    """Copy the publishable part of each table of the attached export `source`."""
    listed = "SELECT name FROM source.sqlite_master"
    listed += " WHERE type = 'table' AND rootpage AND name NOT LIKE 'sqlite_%'"
    tables = []
    for (name,) in connection.execute(listed).fetchall():
        described = connection.execute(f"PRAGMA source.table_info({_quote(name)})").fetchall()
        types = {column: kind.upper() for _, column, kind, *_ in described}
        tables.append(
            _Table(name, {column: kind if kind in _TYPES else "" for column, kind in types.items()})
        )
    whole = [table for table in tables if any(fnmatchcase(table.name, name) for name in _rules()["tables"])]
    selections = [(table, how) for table in tables if (how := _selection(table, whole))]
    # Tables are created before any is filled, so that their names are near the beginning of the file.
    for table, _ in selections:
        columns = ", ".join(f"{_quote(column)} {kind}" for column, kind in table.columns.items())
        connection.execute(f"CREATE TABLE main.{_quote(table.name)} ({columns})")
    for table, (values, condition) in selections:
        selected = f"SELECT {values} FROM source.{_quote(table.name)} WHERE {condition}"  # noqa: S608 (quoted)
        connection.execute(f"INSERT INTO main.{_quote(table.name)} ({table.listed}) {selected}")


def _selection(table: _Table, whole: Sequence[_Table]) -> tuple[str, str] | None:
    """Return the columns to select from a table, and the condition on its rows; None if it is left out.

    `whole` are the tables that are copied with all rows. Of texts, those that they use are copied; of
    processes, those with work on a device, ranges or MPI calls.
    """
    if table in whole:
        return table.listed, "1"
    if table.name == "StringIds":
        return (
            table.listed,
            f'"id" IN ({_union_of(whole, {name: _quote(name) for name in _rules()["strings"]})})',
        )
    if table.name == "PROCESSES":
        of_process = {"globalPid": '"globalPid"', "globalTid": f'"globalTid" & {_PROCESS}'}
        return table.listed, f'"globalPid" IN ({_union_of(whole, of_process)})'
    if table.name == "DIAGNOSTIC_EVENT" and "text" in table.columns:
        return table.listed, 'is_kept(CAST("text" AS BLOB))'
    if {"name", "value"} <= table.columns.keys():
        settings = ", ".join(f"'{name}'" for name in _rules()["settings"])
        values = table.listed.replace(
            _quote("value"), 'COALESCE(ranks_of("name", CAST("value" AS BLOB)), "value")'
        )
        return values, f'"name" IN ({settings}) OR ranks_of("name", CAST("value" AS BLOB)) > \'\''
    return None


def _union_of(tables: Sequence[_Table], expressions: Mapping[str, str]) -> str:
    """Return the query for the values of some columns of tables; `expressions` maps columns to values."""
    queries = [
        f"SELECT {expressions[column]} FROM source.{_quote(table.name)}"  # noqa: S608 (quoted)
        for table in tables
        for column in table.columns
        if column in expressions
    ]
    return " UNION ".join(queries) or "NULL"


def _rank_variables(name: object, value: bytes | None) -> str | None:
    """Return the variables of an environment that state a rank; None if the row is no environment."""
    if not str(name).endswith((":ENVIRONMENT_VARIABLE", "DeviceEnvironment")):
        return None
    settings = _SETTING.findall(_decode(value))
    return ";".join(f"{key}={number}" for key, number in settings if key in _rules()["variables"])


def _decode(text: bytes | None) -> str:
    """Return a text of the export, which need not be valid UTF-8."""
    return (text or b"").decode("utf-8", errors="replace")


@cache
def _rules() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("export_rules.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def links_outside(run: Run, files: Mapping[str, Path]) -> list[str]:
    """Return the files of a run, including its card, that are outside its directory."""
    if storage.is_remote(run.path):
        return []
    folder = (run.path if run.path.is_dir() else run.path.parent).resolve()
    return [
        name
        for name, path in {**files, **_side_files(run)}.items()
        if not path.resolve().is_relative_to(folder)
    ]


def stage_run(run: Run, folder: Path, reopened: Callable[[Path], Run] = open_run) -> tuple[Run, list[str]]:
    """Return the run whose traces are published, and the names of the reports that are published in part.

    A run that differs is a copy in an empty folder, which `reopened` opens with the same options as the run.
    """
    reports = [
        trace.relative.removesuffix(f"#{trace.part}") for trace in run.traces if trace.form.name == "nsys"
    ]
    files, place = input_files(run), folder / run_name(run)
    for name, path in files.items():
        if name not in reports and storage.journals_of(path):
            fix = "open it once with sqlite3 and run PRAGMA wal_checkpoint(TRUNCATE), or record it again"
            raise InputError("has a journal beside it, without which it is incomplete", where=name, fix=fix)
    if not reports:
        return run, []
    if RANK_MAP in files and any(not name.endswith(".sqlite") for name in reports):
        fix = f"export them with nsys export --type sqlite, and name the exports in {RANK_MAP}"
        raise InputError(
            f"names reports that are published under other names in {RANK_MAP}", where=str(run.path), fix=fix
        )
    for name, path in {**files, **_side_files(run)}.items():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name in reports:
            bare = Path(target.name.removesuffix(".gz"))
            redact_export(export_of(path, name), target.with_name(f"{bare.stem}.sqlite"))
            continue
        try:
            os.link(path, target)
        except (OSError, TypeError):  # on another disk, or in object storage
            try:
                with path.open("rb") as source, target.open("xb") as copy:
                    shutil.copyfileobj(source, copy, _BLOCK_BYTES)
            except OSError as error:
                raise storage.unreadable(path, error) from error
    return reopened(place), sorted(set(reports))


def _side_files(run: Run) -> dict[str, Path]:
    """Return the run's own card and description of its environment, by their names below the run.

    A card outside the run must be given again when the copy is opened.
    """
    paths = [run.documents.origins.get("card"), run.path / FILE_NAME]
    files = [path for path in paths if path is not None and path.is_relative_to(run.path) and path.is_file()]
    return {path.relative_to(run.path).as_posix(): path for path in files}
