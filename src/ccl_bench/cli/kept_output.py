"""The kept output of commands: the same command prints it again if nothing that it read has changed.

Such an answer needs no parser, no trace and no arithmetic. Its key is the words of the command, the folder
and environment in which it ran, the program itself, and each file of the run with its times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NO_CACHE = "--no-cache"

MOST_OUTPUTS = 200
"""Outputs that are kept, the latest."""

MOST_CHARACTERS = 8 << 20
"""Length of an output beyond which it is not kept."""

SETTLED_NS = 2_000_000_000
"""Age of a file below which another change may leave its times as they are."""

_FOLDER = "outputs"
_VARIABLES = (
    *("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLORTERM", "TZ", "PATH", "HOME"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE"),
)
"""Environment variables that an output may depend on, besides those of Python, polars and ccl-bench."""

_PREFIXES = ("CCL_BENCH_", "POLARS_", "PYTHON")


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints, and the status that it ends with."""

    text: str
    """For stdout."""
    remarks: list[str]
    """For stderr, each under the program's name."""
    status: int


@dataclass(frozen=True, slots=True)
class Question:
    """A command in its surroundings, before the files that it reads are looked at."""

    name: str
    """The place of its output in the cache."""
    asked_ns: int
    """When it was asked, ns since the epoch."""


def question_of(program: str, arguments: Sequence[str]) -> Question | None:
    """Return the question that a command asks; None if its output is not to be kept."""
    if NO_CACHE in arguments:
        return None
    try:
        code, _ = file_signature([str(Path(__file__).parents[1])])
        installed = [(name, Path(name).stat().st_mtime_ns) for name in sys.path if Path(name).exists()]
        folder = Path.cwd()
    except (UnwatchableError, OSError):
        return None
    variables = {name: value for name, value in os.environ.items() if _is_used(name)}
    key = (program, *arguments), folder, variables, code, installed, sys.version, _user(), _terminal()
    return Question(f"{_FOLDER}/{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}", time.time_ns())


def _is_used(name: str) -> bool:
    return name in _VARIABLES or name.startswith(_PREFIXES)


def _user() -> tuple[int, ...]:
    """Return the user and group: other users may not be allowed to read the run."""
    return (os.geteuid(), os.getegid()) if hasattr(os, "geteuid") else ()


def _terminal() -> tuple[object, ...]:
    """Return the properties that the look of an output depends on."""
    is_terminal = sys.stdout.isatty()
    width = os.get_terminal_size(sys.stdout.fileno()).columns if is_terminal else None
    return (is_terminal, width, sys.stdout.encoding)


def load_output(question: Question) -> Output | None:
    """Return the output of the command; None if not kept, or a file that it read has changed."""
    text = storage.load_text(question.name)
    if text is None:
        return None
    try:
        record = json.loads(text)
        if file_signature(record["places"])[0] != record["signature"]:
            return None
        return Output(**record["output"])
    except (UnwatchableError, ValueError, TypeError, KeyError):
        return None


@dataclass(slots=True)
class Watch:
    """The files that an output comes from, as they were before they were read."""

    question: Question
    places: list[str]
    signature: str

    def keep(self, output: Output) -> None:
        """Keep the output if the files have not changed; a full or unwritable cache is no error."""
        if len(output.text) > MOST_CHARACTERS or _signature(self.question, self.places) != self.signature:
            return
        record = {"places": self.places, "signature": self.signature, "output": asdict(output)}
        storage.save_text(self.question.name, json.dumps(record))
        _forget_older()


def watch(question: Question | None, places: Sequence[str]) -> Watch | None:
    """Return the watch over the files and folders at `places`; None if they cannot be watched.

    It begins before they are read.
    """
    if question is None or any("://" in place for place in places):
        return None
    signature = _signature(question, places)
    return (
        Watch(question, [str(Path(place).absolute()) for place in places], signature) if signature else None
    )


def _signature(question: Question, places: Sequence[str]) -> str:
    """Return the signature of files that have not changed just now; empty if there is none."""
    try:
        signature, latest = file_signature(places)
    except UnwatchableError:
        return ""
    return signature if latest < question.asked_ns - SETTLED_NS else ""


def _forget_older() -> None:
    """Remove all outputs but the latest."""
    folder = storage.text_folder() / _FOLDER
    with contextlib.suppress(OSError):
        outputs = [(path.stat().st_mtime_ns, path) for path in folder.iterdir()]
        for _, path in sorted(outputs, reverse=True)[MOST_OUTPUTS:]:
            path.unlink(missing_ok=True)


MOST_FILES = 20_000
"""Number of files beyond which checking each is not faster."""

_OURS = "__pycache__"
"""A folder that Python fills by itself."""


class UnwatchableError(Exception):
    """The places contain something that no signature covers: a link, an unreadable folder, too many files."""


def file_signature(places: Iterable[str]) -> tuple[str, int]:
    """Return the signature of files and folders with all in them, and when the latest of them changed.

    The time is in ns since the epoch. Hidden names are left out, as runs leave them out. Raises
    UnwatchableError.
    """
    seen, latest = hashlib.sha256(), 0
    for number, (path, status) in enumerate(_entries(places)):
        if number > MOST_FILES:
            raise UnwatchableError
        line = [path, status.st_mode]
        if not stat.S_ISDIR(status.st_mode):
            line += [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            latest = max(latest, status.st_mtime_ns, status.st_ctime_ns)
        seen.update(f"{line}\n".encode(errors="surrogateescape"))
    return seen.hexdigest(), latest


def _entries(places: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    try:
        for place in places:
            real = os.path.realpath(place)
            status = Path(real).stat()
            yield real, status
            if stat.S_ISDIR(status.st_mode):
                yield from _inside(real)
            else:
                yield from ((str(journal), journal.stat()) for journal in storage.journals_of(Path(real)))
    except OSError as error:
        raise UnwatchableError from error


def _inside(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            visible_entries = [entry for entry in entries if entry.name[0] != "." and entry.name != _OURS]
        for entry in sorted(visible_entries, key=lambda entry: entry.name):
            if entry.is_symlink():
                raise UnwatchableError
            yield entry.path, entry.stat()
            if entry.is_dir():
                pending.append(entry.path)
