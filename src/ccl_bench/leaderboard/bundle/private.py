"""What a file tells that its owner may not want to tell: secrets, which are never published, and names."""

from __future__ import annotations

import getpass
import re
import socket
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, BinaryIO

from ccl_bench import storage
from ccl_bench.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_BLOCK_BYTES = 4 << 20
_OVERLAP_BYTES = 1 << 10
"""A match that lies across two blocks is found if it is no longer."""
_SHORTEST_NAME = 4
"""Characters below which a name of this machine would be found everywhere."""


@dataclass(frozen=True, slots=True)
class Told:
    """Something that a file tells."""

    file: str
    what: str
    example: str
    """As it stands there; a secret is cut short."""
    count: int
    is_secret: bool


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    hints: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    is_secret: bool


def told_by(files: Mapping[str, Path]) -> list[Told]:
    """Return what files tell, secrets first."""
    found = [told for name, path in files.items() for told in _told(name, path)]
    return sorted(found, key=lambda told: not told.is_secret)


def refuse_secrets(found: Iterable[Told]) -> None:
    """Raise InputError where a file holds a secret."""
    secrets = [told for told in found if told.is_secret]
    if not secrets:
        return
    first, more = secrets[0], f", and {len(secrets) - 1} more" if len(secrets) > 1 else ""
    raise InputError(
        f"holds {first.what} ({first.example}){more}; nothing was published",
        where=first.file,
        fix="take it out of the file, and revoke it if anybody else could read it",
    )


def _told(name: str, path: Path) -> Iterator[Told]:
    """Yield what one file tells, each kind once."""
    counts: Counter[tuple[_Kind, bytes]] = Counter()
    with storage.open_file(path) as stream:
        for block, seen in _blocks(stream, path):
            for kind in _kinds():
                if any(hint in block for hint in kind.hints):
                    ends = range(seen, len(block))
                    counts.update((kind, m[0]) for m in kind.pattern.finditer(block) if m.end() in ends)
    for kind in _kinds():
        matches = {text: count for (other, text), count in counts.items() if other is kind}
        if matches:
            text = min(matches).decode("utf-8", errors="replace")
            example = f"{text[:8]}..." if kind.is_secret else text
            yield Told(name, kind.name, example, sum(matches.values()), kind.is_secret)


def _blocks(stream: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield a file in blocks that overlap, each with the number of bytes that were seen before.

    A match that reaches the end of a block may go on, and is found whole in the next one; behind the last
    stands a byte that belongs to none. Of a damaged file, what comes before the damage.
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
def _kinds() -> tuple[_Kind, ...]:
    raw = tomllib.loads(resources.files(__package__).joinpath("private.toml").read_text(encoding="utf-8"))
    found = [
        _Kind(
            rule["name"],
            tuple(hint.encode() for hint in rule["hint"]),
            re.compile(rule["pattern"].encode()),
            group == "secret",
        )
        for group in ("secret", "personal")
        for rule in raw[group]
    ]
    return (*found, *_of_this_machine())


def _of_this_machine() -> Iterator[_Kind]:
    """Yield the names by which this machine and its user could be recognised."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    host = socket.gethostname().partition(".")[0]
    for name, text, common in (("this machine's name", host, "localhost"), ("your user name", user, "root")):
        if len(text) >= _SHORTEST_NAME and text != common:
            word = re.escape(text.encode())
            pattern = re.compile(rb"(?<![A-Za-z0-9])" + word + rb"(?![A-Za-z0-9])")
            yield _Kind(name, (text.encode(),), pattern, is_secret=False)
