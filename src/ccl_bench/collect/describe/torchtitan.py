"""A torchtitan run: the configuration in effect, as TOML, and the profiler's overhead by its log."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ccl_bench.card.issues import IssueLog
from ccl_bench.card.sections import read_section
from ccl_bench.card.yaml_tree import mapping_of
from ccl_bench.collect import gather
from ccl_bench.side_files import TrainConfig
from ccl_bench.side_files.torchtitan import is_train_config
from ccl_bench.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.side_files.torchtitan import Profiling

_BARE_KEY = re.compile(r"[\w-]+", re.ASCII)


def toml_text(tables: Mapping[str, Any], above: str = "") -> str:
    """Return tables, and those inside them, as TOML."""
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
    """Return a text, number, truth or list of them as TOML, which writes them as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


_FILE_OPTIONS = ("--job.config_file", "--job.config-file")


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """Settings of a torchtitan run."""

    path: Path
    """The file."""
    settings: TrainConfig
    """What counts: the file, and over it the command line."""
    is_overridden: bool
    """Whether the command line sets anything that the file says otherwise."""
    tables: dict[str, Any] = field(default_factory=dict)
    """What counts, as torchtitan's own tables."""


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
    """Say nothing of keys that are not known."""


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
    """Return settings with those of the command line in their places."""
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
    """Return what a word of the command line means: a number, true or false, else the text itself."""
    try:
        return tomllib.loads(f"value = {text.lower() if text in {'True', 'False'} else text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def save_config(configuration: EffectiveConfig, output: Path) -> None:
    """Put a configuration into the run as it counted; one that counted as it is, is copied."""
    if not configuration.is_overridden:
        gather.copy_files(
            gather.FoundFiles(configuration.path.parent, configurations=[configuration.path]), output
        )
        return
    header = f"# {configuration.path.name}, and over it the options of the command line.\n\n"
    with write_atomically(output / configuration.path.name) as temporary:
        temporary.write_text(header + toml_text(configuration.tables), encoding="utf-8")
        temporary.chmod(0o644)


_LOG_LINE = re.compile(r"step: *(\d+) .*tps: *([\d,]+)")


def logged_overhead(log: Path, profiling: Profiling) -> dict[str, float]:
    """Return {"active": share by which recorded steps were longer}; nothing where the log does not tell."""
    window, active, warmup = profiling.frequency, profiling.active, profiling.warmup
    if not (profiling.is_profiled and window and active and warmup is not None):
        return {}
    plain: list[float] = []
    recorded: list[float] = []
    for before, last, seconds in _logged_intervals(log):
        first = before % window + 1
        end = first + last - before - 1
        if window - active < first and end <= window:
            recorded += seconds
        elif end <= window - active - warmup and before % window:
            plain += seconds
    return {"active": fmean(recorded) / fmean(plain) - 1} if recorded and plain else {}


def _logged_intervals(log: Path) -> list[tuple[int, int, list[float]]]:
    """Return (last step of the line before, last step, seconds a token on each rank) of the lines of a log.

    The line of the first step and the one after it are left out: there training settles.
    """
    by_step: dict[int, list[float]] = {}
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            for found in filter(None, map(_LOG_LINE.search, lines)):
                if rate := int(found[2].replace(",", "")):
                    by_step.setdefault(int(found[1]), []).append(1 / rate)
    except OSError:
        return []
    steps = sorted(by_step)[1:]
    return [(before, last, by_step[last]) for before, last in pairwise(steps)]
