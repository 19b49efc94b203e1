"""Kinds of files that people and programs leave beside traces: what each is called, holds and gives."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

from ccl_bench import card
from ccl_bench.base.errors import InputError
from ccl_bench.side_files import (
    device_samples,
    experts,
    memory_stats,
    metadata,
    nccl_tests,
    prices,
    step_times,
    torchtitan,
    training_metrics,
)
from ccl_bench.side_files.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccl_bench.storage.files import Location


@dataclass(frozen=True, slots=True, eq=False)
class SideFile:
    """One kind of file beside traces, recognised by its name or, without one, by its content."""

    name: str
    attribute: str
    """What its content becomes among the documents of a run."""
    gives: str
    """Input of metrics that its content becomes; `facts` where it states facts."""
    read: Callable[..., card.Reading[Any]]
    """Reads a file; of a kind that `adds_up`, behind what was read `before`."""
    file_names: tuple[str, ...] = ()
    """Its names in lower case, which may be patterns; of two in one folder the first counts."""
    has_shape: Callable[[object], bool] = lambda _: False
    """Whether JSON data of such a name is of this kind."""
    recognises: Callable[[Path], bool] = lambda _: False
    """Whether the content of a file is of this kind."""
    adds_up: bool = False
    """Whether several files make up the content."""
    holds: str = ""
    """Part of the content that is empty where a file holds nothing usable; without one, none is needed."""

    def label(self, path: Path) -> str:
        """Return the kind of a file for people: its name where that says it."""
        return path.name if path.name.lower() in self.file_names else self.name


_SUFFIXES_OF_YAML = (".yaml", ".yml")

CARD = SideFile(
    "workload card",
    "card",
    "facts",
    card.read_card,
    recognises=lambda path: (
        path.suffix.lower() in _SUFFIXES_OF_YAML and (path.stem == "workload_card" or card.is_card_file(path))
    ),
)
TRAIN_CONFIG = SideFile(
    "training configuration",
    "config",
    "facts",
    torchtitan.read_train_config,
    recognises=lambda path: path.suffix.lower() == ".toml" and torchtitan.is_train_config_file(path),
)
RUN_METADATA = SideFile(
    "run_metadata",
    "metadata",
    "facts",
    metadata.read_metadata,
    (metadata.FILE_NAME,),
    has_shape=lambda data: isinstance(data, dict),
)
STEP_TIMES = SideFile(
    "step_times",
    "step_times",
    "step_times",
    step_times.read_step_times,
    step_times.FILE_NAMES,
    step_times.is_step_times,
    holds="seconds",
)
RANK_STEP_TIMES = SideFile(
    "step_times_per_rank",
    "rank_step_times",
    "step_times",
    step_times.read_rank_step_times,
    (step_times.PER_RANK_FILE_NAME,),
    step_times.is_rank_step_times,
    holds="seconds",
)
TRAINING_METRICS = SideFile(
    "training_metrics",
    "training_metrics",
    "training_metrics",
    training_metrics.read_training_metrics,
    (training_metrics.FILE_NAME,),
    training_metrics.is_training_metrics,
    holds="series",
)
MEMORY_STATS = SideFile(
    "memory_stats",
    "memory_stats",
    "memory_stats",
    memory_stats.read_memory_stats,
    memory_stats.MEMORY_FILE_NAMES,
    memory_stats.is_memory_stats,
    holds="devices",
)
MOE_ASSIGNMENTS = SideFile(
    "moe_assignments",
    "moe_assignments",
    "moe_assignments",
    experts.read_moe_assignments,
    (experts.MOE_FILE_PATTERN,),
    experts.is_moe_assignments,
    adds_up=True,
    holds="records",
)
NCCL_TESTS = SideFile(
    "nccl_tests",
    "nccl_tests",
    "nccl_tests",
    nccl_tests.read_nccl_tests,
    recognises=nccl_tests.is_nccl_tests_file,
    adds_up=True,
    holds="measured",
)
DEVICE_SAMPLES = SideFile(
    "device_samples",
    "device_samples",
    "device_samples",
    device_samples.read_device_samples,
    recognises=device_samples.is_device_samples_file,
    adds_up=True,
    holds="series",
)
PRICES = SideFile("prices", "prices", "prices", prices.read_prices, (prices.FILE_NAME,), holds="devices")
KINDS = (
    CARD,
    PRICES,
    TRAIN_CONFIG,
    RUN_METADATA,
    STEP_TIMES,
    RANK_STEP_TIMES,
    TRAINING_METRICS,
    MEMORY_STATS,
    MOE_ASSIGNMENTS,
    NCCL_TESTS,
    DEVICE_SAMPLES,
)


def kind_named(name: str) -> SideFile | None:
    """Return the kind that a file's name stands for."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    return next((kind for kind in KINDS if any(fnmatch(last, pattern) for pattern in kind.file_names)), None)


def kind_of(path: Path) -> SideFile | None:
    """Return the kind of a file by its name, else by its content; never raises for what the file holds."""
    return kind_named(path.name) or next((kind for kind in KINDS if kind.recognises(path)), None)


def side_file(path: Location) -> SideFile | None:
    """Return the kind of a JSON file whose name and content agree; never raises for what the file holds."""
    kind = kind_named(str(path))
    if kind is None:
        return None
    try:
        data, _ = read_json(path)
    except InputError:
        return None
    return kind if kind.has_shape(data) else None
