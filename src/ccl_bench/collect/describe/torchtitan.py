"""A torchtitan run: the configuration in effect, as TOML."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.card.sections import read_section
from ccl_bench.card.yaml_tree import IssueLog, mapping_of
from ccl_bench.collect import gather
from ccl_bench.side_files import TrainConfig
from ccl_bench.side_files.torchtitan import is_train_config
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


_BARE_KEY = re.compile(r"[\w-]+", re.ASCII)


def toml_text(tables: Mapping[str, Any], above: str = "") -> str:
    """Return nested tables as TOML."""
    inner = {key: value for key, value in tables.items() if isinstance(value, dict)}
    parts = [
        "".join(
            f"{_toml_key(key)} = {toml_value(value)}\n" for key, value in tables.items() if key not in inner
        )
    ]
    if above and (parts[0] or not inner):
        parts[0] = f"[{above}]\n{parts[0]}"
    parts += [
        toml_text(table, f"{above}.{_toml_key(name)}" if above else _toml_key(name))
        for name, table in inner.items()
    ]
    return "\n".join(part for part in parts if part)


def toml_value(value: Any) -> str:
    """Return a string, number, boolean or list as TOML, which writes them as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


_FILE_OPTIONS = ("--job.config_file", "--job.config-file")


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """The settings that a torchtitan run used."""

    path: Path
    """The file."""
    settings: TrainConfig
    """The file, with the options of the command line over it."""
    is_overridden: bool
    """Whether the command line changes a setting of the file."""
    tables: dict[str, Any] = field(default_factory=dict)
    """The same as torchtitan's own tables."""


def effective_config(command: Sequence[str], folder: Path, found: Iterable[Path]) -> EffectiveConfig | None:
    """Return the configuration that the command names, else the first of those that were `found`."""
    options = dict(_command_line_options(command))
    named = next((folder / options[name] for name in _FILE_OPTIONS if name in options), None)
    for path in (named, *found):
        data = _read_train_config(path) if path else None
        if path and data is not None:
            changed = _with_overrides(data, options)
            settings = read_section(
                mapping_of(changed), TrainConfig, IssueLog(str(path)), unknown=_ignore_unknown_key
            )
            return EffectiveConfig(path, settings, changed != data, changed)
    return None


def _read_train_config(path: Path) -> dict[str, Any] | None:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, tomllib.TOMLDecodeError):
        return None
    return data if is_train_config(data) else None


def _ignore_unknown_key(*_: object, **__: object) -> None:
    """Report nothing: a configuration may have keys that ccl-bench does not read."""


def _command_line_options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
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


def _with_overrides(data: dict[str, Any], options: dict[str, str]) -> dict[str, Any]:
    """Return the settings with those of the command line over them."""
    changed = {name: dict(part) if isinstance(part, dict) else part for name, part in data.items()}
    for option, text in options.items():
        section, _, key = option[2:].replace("-", "_").partition(".")
        if option in _FILE_OPTIONS or "." in key:
            continue
        part = changed.setdefault(section, {})
        if isinstance(part, dict):
            part[key] = _parse_value(text)
    return changed


def _parse_value(text: str) -> Any:
    """Return the value of a command-line word: a number, a boolean, else the word itself."""
    try:
        return tomllib.loads(f"value = {text.lower() if text in {'True', 'False'} else text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def save_config(configuration: EffectiveConfig, output: Path) -> None:
    """Save the configuration in effect into the run; copy the file if the command line changes nothing."""
    if not configuration.is_overridden:
        gather.copy_files(
            gather.FoundFiles(configuration.path.parent, configurations=[configuration.path]), output
        )
        return
    header = f"# {configuration.path.name}, and over it the options of the command line.\n\n"
    replace_text(output / configuration.path.name, header + toml_text(configuration.tables))
