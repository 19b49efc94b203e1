"""Step durations that a run wrote itself, for all ranks together or for each.

Files: `step_times.json`, `step_durations.json`, `step_times_per_rank.json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from ccl_bench.card.yaml_tree import Reading, shown
from ccl_bench.side_files.json_file import finite_number, read_json

if TYPE_CHECKING:
    from ccl_bench.card.yaml_tree import IssueLog
    from ccl_bench.storage.files import Location

FILE_NAMES = ("step_times.json", "step_durations.json")
PER_RANK_FILE_NAME = "step_times_per_rank.json"
LONG_STEP_S = 100.0
"""A median step above this is more likely a duration in milliseconds."""

SHORTEST_STEP_S, LONGEST_STEP_S = 1e-9, 1e7
"""A duration outside is damage: clocks count nanoseconds, and nobody waits four months for a step."""

_WRAPPERS = ("steps", "step_times", "step_durations")
_DURATION_KEYS = ("duration_sec", "duration_s", "duration", "seconds")
_SECOND_WORDS = frozenset({"s", "sec", "second", "seconds"})


@dataclass(frozen=True, slots=True)
class RunStepTimes:
    """Duration of each step in seconds; damaged values are left out."""

    seconds: dict[int, float] = field(default_factory=dict)
    is_numbered: bool = False
    """Whether the file numbers its steps; otherwise the number is the position, from 0."""


@dataclass(frozen=True, slots=True)
class RankStepTimes:
    """Duration of each step on each rank in seconds; damaged values are left out."""

    seconds: dict[int, dict[int, float]] = field(default_factory=dict)


def read_step_times(path: Location) -> Reading[RunStepTimes]:
    """Return the step durations of a run; InputError only where the file is not JSON."""
    data, log = read_json(path)
    times = _step_times(data, "", log)
    _check_plausible(list(times.seconds.values()), log)
    return Reading(times, log.in_order(), str(path))


def read_rank_step_times(path: Location) -> Reading[RankStepTimes]:
    """Return the step durations of each rank; InputError only where the file is not JSON."""
    data, log = read_json(path)
    by_rank: dict[int, dict[int, float]] = {}
    items: list[tuple[Any, Any]] = []
    if isinstance(data, dict):
        items = [*data.items()]
    elif isinstance(data, list):
        items = [(str(rank), value) for rank, value in enumerate(data)]
    else:
        log.error("", "is neither {rank: durations} nor a list of lists", "write one of the two")
    ranks: dict[int, Any] = {}
    for key, value in items:
        rank = _rank_number(key)
        if rank is None:
            log.warning(shown(key), "is not a rank and is ignored", "write {rank: durations} only")
        elif rank in ranks:
            log.error(shown(key), "repeats a rank", "keep one entry for each rank")
        else:
            ranks[rank] = value
    for rank, value in ranks.items():
        if seconds := _step_times(value, str(rank), log).seconds:
            by_rank[rank] = seconds
    if len({frozenset(steps) for steps in by_rank.values()}) > 1:
        log.warning("", "the ranks do not hold the same steps", "compare ranks on the steps they share")
    _check_plausible([seconds for steps in by_rank.values() for seconds in steps.values()], log)
    return Reading(RankStepTimes(by_rank), log.in_order(), str(path))


def is_step_times(data: object) -> bool:
    """Whether JSON data has the shape of step durations: a list or {step: seconds}."""
    if isinstance(data, dict):
        inner = next((data[key] for key in _WRAPPERS if key in data), None)
        return isinstance(inner, list) or any(_step_number(key) is not None for key in data)
    return isinstance(data, list) and any(isinstance(item, int | float | dict) for item in data)


def is_rank_step_times(data: object) -> bool:
    """Whether JSON data has the shape of step durations per rank."""
    items = (
        [value for key, value in data.items() if _rank_number(key) is not None]
        if isinstance(data, dict)
        else data
    )
    return isinstance(items, list) and any(isinstance(item, list | dict) for item in items)


def _step_times(data: Any, path: str, log: IssueLog) -> RunStepTimes:
    if isinstance(data, dict):
        unit = next((data[key] for key in ("unit", "units") if key in data), "s")
        if str(unit).lower() not in _SECOND_WORDS:
            message = f"is in {shown(str(unit))}, but durations are in seconds"
            log.error(path, message, "write the durations in seconds")
            return RunStepTimes()
        wrapper_key = next((key for key in _WRAPPERS if key in data), None)
        if wrapper_key:
            return _step_times(data[wrapper_key], f"{path}.{wrapper_key}" if path else wrapper_key, log)
        return RunStepTimes(_numbered(data, path, log), is_numbered=True)
    if isinstance(data, list):
        return _of_list(data, path, log)
    log.error(path, "is neither a list of seconds nor {step: seconds}", "write one of the two")
    return RunStepTimes()


def _numbered(data: dict[str, Any], path: str, log: IssueLog) -> dict[int, float]:
    durations: dict[int, float] = {}
    for key, value in data.items():
        inner, step = f"{path}.{shown(key)}" if path else shown(key), _step_number(key)
        if step is None:
            if key.lower() not in ("unit", "units"):
                log.warning(inner, "is not a step number and is ignored", "write {step: seconds} only")
        elif step in durations:
            log.error(inner, "repeats a step", "keep one duration for each step")
        elif (seconds := _seconds(value, inner, log)) is not None:
            durations[step] = seconds
    return durations


def _of_list(data: list[Any], path: str, log: IssueLog) -> RunStepTimes:
    records = [item for item in data if isinstance(item, dict)]
    durations: dict[int, float] = {}
    for index, item in enumerate(data):
        inner, step, value = f"{path}[{index}]", index, item
        if isinstance(item, dict):
            key = next((key for key in _DURATION_KEYS if key in item), None)
            if key is None:
                log.error(inner, "holds no duration in seconds", f"write it as {_DURATION_KEYS[0]}")
                continue
            step, value, inner = item.get("step", index), item[key], f"{inner}.{key}"
        if isinstance(step, bool) or not isinstance(step, int) or step in durations:
            log.error(
                inner,
                f"{shown(repr(step))} is not a step number, or repeats one",
                "give each step its own number",
            )
        elif (seconds := _seconds(value, inner, log)) is not None:
            durations[step] = seconds
    return RunStepTimes(durations, is_numbered=any("step" in item for item in records))


def _seconds(value: Any, path: str, log: IssueLog) -> float | None:
    seconds = finite_number(value, path, log)
    if seconds is not None and not SHORTEST_STEP_S <= seconds <= LONGEST_STEP_S:
        log.error(path, f"{seconds:g} s is not the duration of a step", "write seconds above 0")
        return None
    return seconds


def _check_plausible(seconds: list[float], log: IssueLog) -> None:
    if not seconds:
        log.error("", "holds no usable step duration", "write seconds, one for each step")
    elif median(seconds) > LONG_STEP_S:
        log.warning(
            "", f"a step takes {median(seconds):g} s, which looks like milliseconds", "if so, write seconds"
        )


def _step_number(key: str) -> int | None:
    match = re.fullmatch(r"(?:step[_ ]?)?(\d{1,15})", key.strip().lower())
    return int(match[1]) if match else None


def _rank_number(key: str) -> int | None:
    match = re.fullmatch(r"(?:rank[_ ]?)?(\d{1,15})", key.strip().lower())
    return int(match[1]) if match else None
