"""A torchtitan run: the effective configuration, the loss of each step, and the overhead of recording."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ccl_bench.card.sections import read_section
from ccl_bench.card.yaml_tree import IssueLog, mapping_of
from ccl_bench.collect import gather
from ccl_bench.collect.profiling.rank_summary import METRICS, write_lines
from ccl_bench.side_files import TrainConfig
from ccl_bench.side_files.torchtitan import is_train_config
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.side_files.torchtitan import Profiling

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
    """Return a string, number, boolean or list as TOML, whose notation equals JSON."""
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
    """The file, with the options of the command line applied."""
    is_overridden: bool
    """Whether the command line changes a setting of the file."""
    tables: dict[str, Any] = field(default_factory=dict)
    """The same as torchtitan's own tables."""


def effective_config(
    command: Sequence[str], folder: Path, configurations: Iterable[Path]
) -> EffectiveConfig | None:
    """Return the configuration that the command names, else the first of `configurations`."""
    options = dict(_command_line_options(command))
    named_file = next((folder / options[name] for name in _FILE_OPTIONS if name in options), None)
    for path in (named_file, *configurations):
        if path is None:
            continue
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8", errors="replace"))
        except (OSError, tomllib.TOMLDecodeError):
            continue
        if is_train_config(data):
            changed = _with_overrides(data, options)
            settings = read_section(
                mapping_of(changed),
                TrainConfig,
                IssueLog(str(path)),
                unknown=lambda *_, **__: None,  # it may have keys that ccl-bench does not read
            )
            return EffectiveConfig(path, settings, changed != data, changed)
    return None


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
    """Return the settings with those of the command line applied."""
    changed = {name: dict(part) if isinstance(part, dict) else part for name, part in data.items()}
    for option, text in options.items():
        section, _, key = option[2:].replace("-", "_").partition(".")
        if option in _FILE_OPTIONS or "." in key:
            continue
        part = changed.setdefault(section, {})
        if isinstance(part, dict):
            value = text.lower() if text in {"True", "False"} else text
            try:
                part[key] = tomllib.loads(f"value = {value}")["value"]
            except tomllib.TOMLDecodeError:  # a word
                part[key] = text
    return changed


def save_config(configuration: EffectiveConfig, output: Path) -> None:
    """Save the configuration in effect into the run; copy the file if the command line changes nothing."""
    if not configuration.is_overridden:
        gather.copy_files(
            gather.FoundFiles(configuration.path.parent, configurations=[configuration.path]), output
        )
        return
    header = f"# {configuration.path.name}, and over it the options of the command line.\n\n"
    replace_text(output / configuration.path.name, header + toml_text(configuration.tables))


_RATE = re.compile(r"step: *(\d+) .*tps: *([\d,]+)")
_LOSS = re.compile(r"step: *(\d+) .*?loss: *(\S+) .*?grad_norm: *(\S+)")
"""A line of training; a line of validation has no gradient norm."""

_LONGEST_LINE = 1 << 16
"""Largest length of a line that is searched."""

Series = dict[int, float | None]
"""Step -> value; None where it is not a finite number."""


def save_losses(log: Path, output: Path) -> None:
    """Write the losses and norms of gradients in a log into `training_metrics.json`, unless there is one."""
    losses, norms = logged_losses(log)
    if losses and not (output / METRICS).exists():
        by_name = {"loss": [*losses.values()], "grad_norm": [*norms.values()]}
        write_lines(output / METRICS, {"step": [*losses], **by_name})


def logged_losses(log: Path) -> tuple[Series, Series]:
    """Return the loss and the norm of gradients of each step that has a line; mean over ranks.

    The ranks of a pipeline that compute no loss log a negative one.
    """
    losses: dict[int, list[float]] = {}
    norms: dict[int, list[float]] = {}
    for match in _lines(log, _LOSS):
        if not match[2].startswith("-"):
            losses.setdefault(int(match[1]), []).append(_number(match[2]))
            norms.setdefault(int(match[1]), []).append(_number(match[3]))
    return _means(losses), _means(norms)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _means(values: dict[int, list[float]]) -> Series:
    means = {step: fmean(values[step]) for step in sorted(values)}
    return {step: mean if math.isfinite(mean) else None for step, mean in means.items()}


def _lines(log: Path, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in the lines of a log; none if it is unreadable or a device file."""
    if not log.is_file():
        return
    try:
        with log.open(encoding="utf-8", errors="replace") as text:
            yield from filter(None, map(pattern.search, iter(partial(text.readline, _LONGEST_LINE), "")))
    except OSError:
        return


def logged_overhead(log: Path, profiling: Profiling) -> dict[str, float]:
    """Return {"active": share by which recorded steps were longer}; empty if the log does not show it.

    Every `log_freq` steps torchtitan logs the tokens per second since the line before. A line that covers
    only recorded steps is compared with lines before the profiler began, without their first half, in which
    training stabilises.
    """
    window, active, warmup = profiling.frequency, profiling.active, profiling.warmup
    if not (profiling.is_profiled and window and active and warmup is not None):
        return {}
    until = window - active - warmup
    plain: list[float] = []
    overheads: list[float] = []
    by_step: dict[int, list[float]] = {}
    """Step of a line → seconds a token on each rank, since the line before."""
    for match in _lines(log, _RATE):
        if rate := int(match[2].replace(",", "")):
            by_step.setdefault(int(match[1]), []).append(1 / rate)
    # The first line and the one after it hold the warm-up of the training.
    for before, last in pairwise(sorted(by_step)[1:]):
        seconds = by_step[last]
        first = before % window + 1
        end = first + last - before - 1
        if window - active < first and end <= window:
            overheads += seconds
        elif end <= until and 2 * (before % window) >= until:
            plain += seconds
    return {"active": fmean(overheads) / fmean(plain) - 1} if overheads and plain else {}
