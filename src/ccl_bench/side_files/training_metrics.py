"""`training_metrics.json`: the loss and the other series of a training run.

Layouts in use: a list of records, and for each name a list, {step: value}, or a single value.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.base.text import counted
from ccl_bench.card.yaml_tree import Reading, shown
from ccl_bench.side_files.json_file import finite_number, read_json

if TYPE_CHECKING:
    from ccl_bench.card.yaml_tree import IssueLog
    from ccl_bench.storage.files import Location

FILE_NAME = "training_metrics.json"
STEP_KEYS = ("step", "steps", "iteration", "global_step")
LOSS_NAMES = (
    "loss", "train_loss", "training_loss", "train/loss", "lm loss", "lm_loss", "loss_by_step",
    "global_avg_loss", "loss_metrics/global_avg_loss",
)  # fmt: skip
"""Names of the training loss, the plainest first; the last two are torchtitan's."""

PERPLEXITY_NAMES = (
    "perplexity", "train_perplexity", "training_perplexity", "train/perplexity",
    "ppl", "train_ppl", "lm loss ppl",
)  # fmt: skip

_READ_ALWAYS = (*LOSS_NAMES, *PERPLEXITY_NAMES)
"""Series whose values are reported where they are no numbers."""

LARGEST_LOSS = 1e6
"""More is damage. A uniform guess among a million tokens has a loss of 13.8 nats; a sum over the tokens of a
batch may be larger than a mean, and a diverging one too."""
LARGEST_PERPLEXITY = 1e38
"""The largest number of fp32 is 3.4e38."""

_WRAPPERS = ("history", "log_history", "records", "metrics", "steps")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series."""

    value: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingMetrics:
    """Every numeric series of a run; damaged points are left out."""

    series: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    loss_name: str | None = None
    """Which series is the training loss."""
    final_loss: float | None = None
    """Loss of the last step, or None if that step's value is missing, damaged or ambiguous."""
    final_perplexity: float | None = None
    """Perplexity of the last step, likewise."""


@dataclass(slots=True)
class _Series:
    """A series while it is read; `None` marks a damaged point, so that an earlier one never replaces it."""

    points: list[tuple[int | None, float | None, str]] = field(default_factory=list)

    def sorted(self) -> tuple[Point, ...]:
        """Return the undamaged points, in order of steps where all have one."""
        points = [Point(value, step) for step, value, _ in self.points if value is not None]
        if all(point.step is not None for point in points):
            points.sort(key=lambda point: point.step or 0)
        return tuple(points)

    def last(self) -> list[float | None]:
        """Return the values at the last step: several where the file repeats it."""
        steps = [step for step, _, _ in self.points]
        if any(step is None for step in steps):
            return [self.points[-1][1]]
        final = max(step for step in steps if step is not None)
        return [value for step, value, _ in self.points if step == final]


def read_training_metrics(path: Location) -> Reading[TrainingMetrics]:
    """Return the series of a run and its final loss; InputError only where the file is not JSON."""
    data, log = read_json(path)
    by_name: dict[str, _Series] = {}
    _collect(data, by_name, log)
    if not by_name:
        log.error("", "holds no numeric series", 'write [{"step": 1, "loss": 2.5}, ...]')
    for name, series in by_name.items():
        counts = Counter(step for step, _, _ in series.points if step is not None)
        if repeated := next((step for step, count in counts.items() if count > 1), None):
            message = f"step {repeated} is written {counts[repeated]} times"
            log.warning(shown(name), message, "keep one value for each step")
    loss_name, perplexity_name = (
        next((name for spelling in names for name in by_name if name.lower() == spelling), None)
        for names in (LOSS_NAMES, PERPLEXITY_NAMES)
    )
    metrics = TrainingMetrics(
        {name: points for name, series in by_name.items() if (points := series.sorted())},
        loss_name,
        _final_loss(by_name, loss_name, log),
        _final_value(by_name, perplexity_name, "perplexity", log),
    )
    if by_name and not (loss_name or perplexity_name or "final_loss" in by_name):
        log.warning(
            "",
            f"no series is called {LOSS_NAMES[0]}, {LOSS_NAMES[1]} or {PERPLEXITY_NAMES[0]}",
            f"found: {', '.join(map(shown, by_name))}",
        )
    return Reading(metrics, log.in_order(), str(path))


def is_training_metrics(data: object) -> bool:
    """Whether JSON data has the shape of training metrics."""
    records = data if isinstance(data, list) else [data]
    names = {str(key).lower() for record in records if isinstance(record, dict) for key in record}
    known_names = {*PERPLEXITY_NAMES, *_WRAPPERS}
    return bool(names) and any("loss" in name or name in known_names for name in names)


def _collect(data: Any, by_name: dict[str, _Series], log: IssueLog) -> None:
    if isinstance(data, list):
        _records(data, "", by_name, log)
        return
    if not isinstance(data, dict):
        log.error("", "is neither a list of records nor a mapping of series", 'write {"loss": [2.5, ...]}')
        return
    lists = [steps for key in STEP_KEYS if isinstance(steps := data.get(key), list) and steps]
    steps = next((steps for steps in lists if all(map(_is_step, steps))), None)
    for name, value in data.items():
        if name in _WRAPPERS and isinstance(value, list) and any(isinstance(item, dict) for item in value):
            _records(value, name, by_name, log)
        elif name not in STEP_KEYS:
            _one_series(name, value, steps, by_name, log)


def _records(records: list[Any], path: str, by_name: dict[str, _Series], log: IssueLog) -> None:
    for index, record in enumerate(records):
        inner = f"{path}[{index}]"
        if not isinstance(record, dict):
            log.error(inner, "is not a record", 'write {"step": 1, "loss": 2.5}')
            continue
        step = next((record[key] for key in STEP_KEYS if key in record), None)
        if step is not None and not _is_step(step):
            log.error(f"{inner}.step", f"{shown(repr(step))} is not a step number", "write a whole number")
            step = None
        for name, value in record.items():
            if name in _READ_ALWAYS or (name not in STEP_KEYS and _is_number(value)):
                _point(name, step, value, f"{inner}.{shown(name)}", by_name, log)


def _one_series(
    name: str, value: Any, steps: list[int] | None, by_name: dict[str, _Series], log: IssueLog
) -> None:
    path = shown(name)
    if isinstance(value, dict) and value and all(key.isdecimal() and len(key) < 16 for key in value):
        for key, item in value.items():
            _point(name, int(key), item, f"{path}.{key}", by_name, log)
    elif isinstance(value, list):
        numbers = steps if steps and len(steps) == len(value) else None
        if steps and numbers is None:
            log.warning(
                path,
                f"holds {counted(len(value), 'value')} for {counted(len(steps), 'step')}",
                "write one value for each step",
            )
        for index, item in enumerate(value):
            is_pair = isinstance(item, list) and len(item) == 2 and _is_step(item[0])
            step = item[0] if is_pair else numbers[index] if numbers else None
            _point(name, step, item[1] if is_pair else item, f"{path}[{index}]", by_name, log)
    elif name in _READ_ALWAYS or _is_number(value):
        _point(name, None, value, path, by_name, log)


def _point(
    name: str, step: int | None, value: Any, path: str, by_name: dict[str, _Series], log: IssueLog
) -> None:
    number = finite_number(value, path, log)
    is_loss = name.lower() in LOSS_NAMES or name.lower() == "final_loss"
    if number is not None and is_loss and not 0 < number <= LARGEST_LOSS:
        log.error(path, f"{number:g} is not the cross-entropy loss of any training", "check what was written")
        number = None
    is_perplexity = name.lower() in PERPLEXITY_NAMES
    if number is not None and is_perplexity and not 1 <= number <= LARGEST_PERPLEXITY:
        log.error(path, f"{number:g} is not the perplexity of any model", "check what was written")
        number = None
    by_name.setdefault(name, _Series()).points.append((step, number, path))


def _final_loss(by_name: dict[str, _Series], loss_name: str | None, log: IssueLog) -> float | None:
    stated_loss = by_name["final_loss"].points[-1][1] if "final_loss" in by_name else None
    value = _final_value(by_name, loss_name, "loss", log)
    if stated_loss is not None and value is not None and not math.isclose(stated_loss, value, rel_tol=1e-3):
        log.warning(
            "final_loss", f"{stated_loss:g} is used, and the series ends at {value:g}", "correct one of them"
        )
    return stated_loss if stated_loss is not None else value


def _final_value(by_name: dict[str, _Series], name: str | None, quantity: str, log: IssueLog) -> float | None:
    """Return the value of a series at the last step; None, and why, where it has none."""
    if name is None:
        return None
    last = by_name[name].last()
    if len(set(last)) > 1:
        log.error(shown(name), "holds different values for the last step", "keep one")
        return None
    if last[0] is None:
        message = f"is damaged at the last step, so there is no final {quantity}"
        log.error(shown(name), message, "see the error above")
    return last[0]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
