"""The torchtitan configuration that a command runs with: its file, and what the command line sets besides."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.card import TrainConfig
from ccl_bench.card.issues import IssueLog
from ccl_bench.card.nodes import mapping_of
from ccl_bench.card.torchtitan_reading import is_train_config
from ccl_bench.card.walking import read_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_FILE_OPTIONS = ("--job.config_file", "--job.config-file")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings of a torchtitan run."""

    path: Path
    """The file."""
    settings: TrainConfig
    """What counts: the file, and over it the command line."""
    is_overridden: bool
    """Whether the command line sets anything that the file says otherwise."""
    tables: dict[str, Any] = field(default_factory=dict)
    """What counts, as torchtitan's own tables."""


def configuration_of(command: Sequence[str], folder: Path, found: Iterable[Path]) -> Configuration | None:
    """Return the configuration that the command names, else the first of those that were `found`."""
    options = dict(_options(command))
    named = next((folder / options[name] for name in _FILE_OPTIONS if name in options), None)
    for path in (named, *found):
        data = _read(path) if path else None
        if path and data is not None:
            changed = _overridden(data, options)
            settings = read_part(mapping_of(changed), TrainConfig, IssueLog(str(path)), unknown=_passed_over)
            return Configuration(path, settings, changed != data, changed)
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, tomllib.TOMLDecodeError):
        return None
    return data if is_train_config(data) else None


def _passed_over(*_: object, **__: object) -> None:
    """Say nothing of keys that are not known."""


def _options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options `--section.key` of a command with their values."""
    words = list(command)
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not (name.startswith("--") and "." in name):
            continue
        following = words[position + 1 : position + 2]
        if equals:
            yield name, value
        elif following and not following[0].startswith("--"):
            yield name, following[0]
        else:
            yield name, "true"


def _overridden(data: dict[str, Any], options: dict[str, str]) -> dict[str, Any]:
    """Return settings with those of the command line in their places."""
    changed = {name: dict(part) if isinstance(part, dict) else part for name, part in data.items()}
    for option, text in options.items():
        section, _, key = option[2:].replace("-", "_").partition(".")
        if option in _FILE_OPTIONS or "." in key:
            continue
        part = changed.setdefault(section, {})
        if isinstance(part, dict):
            part[key] = _value(text)
    return changed


def _value(text: str) -> Any:
    """Return what a word of the command line means: a number, true or false, else the text itself."""
    try:
        return tomllib.loads(f"value = {text.lower() if text in {'True', 'False'} else text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
