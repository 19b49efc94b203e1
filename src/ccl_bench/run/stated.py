"""What people and launchers wrote about a run: card, metadata, configuration and side files as read."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ccl_bench.card import Card, Issue
    from ccl_bench.side_files import (
        MemoryStats,
        MoeAssignments,
        RankStepTimes,
        RunMetadata,
        StepTimes,
        TrainConfig,
        TrainingMetrics,
    )

METADATA = "run_metadata.json"
CARD = "workload card"
CONFIG = "training configuration"

_INPUTS = {name: name for name in ("step_times", "training_metrics", "memory_stats", "moe_assignments")} | {
    "rank_step_times": "step_times"
}
"""Attribute of Stated → the input of metrics that it becomes; the others become facts."""

_CARD_SUFFIXES = (".yaml", ".yml")
_STATING_SUFFIXES = (*_CARD_SUFFIXES, ".toml", ".json")


@dataclass(slots=True)
class Stated:
    """What people and launchers wrote about a run, as read; None where there is no such file."""

    card: Card | None = None
    metadata: RunMetadata | None = None
    config: TrainConfig | None = None
    step_times: StepTimes | None = None
    rank_step_times: RankStepTimes | None = None
    training_metrics: TrainingMetrics | None = None
    memory_stats: MemoryStats | None = None
    moe_assignments: MoeAssignments | None = None
    """Of all files that hold some, together."""
    files: dict[Path, str] = field(default_factory=dict)
    """What each file was read as."""
    issues: list[Issue] = field(default_factory=list)
    """Everything that is wrong in the files."""
    findings: list[Finding] = field(default_factory=list)
    """Files that could not be read at all."""
    origins: dict[str, Path] = field(default_factory=dict)
    """Attribute of this class → the file that it was read from."""
    sha256: dict[Path, str] = field(default_factory=dict)
    """Hash of each file that was read."""

    def read(self, kind: str, attribute: str, path: Path, read: Callable[[Path], Any]) -> None:
        """Keep the content of a file as `attribute`; one that cannot be read is a finding."""
        try:
            self.keep(kind, attribute, path, read)
        except InputError as error:
            touches, message = (_INPUTS.get(attribute, "facts"),), f"{kind}: {error.message}"
            self.findings.append(Finding("file-unreadable", "error", message, path.name, touches=touches))

    def keep(self, kind: str, attribute: str, path: Path, read: Callable[[Path], Any]) -> None:
        """Keep the content of a file as `attribute`; raise InputError where it cannot be read.

        Of a file without anything usable nothing is kept, so that the next source counts.
        """
        self.files[path] = kind
        reading = read(path)
        self.sha256[path] = storage.sha256(path)
        self.issues += reading.issues
        if reading.errors:
            self.findings.append(_mistakes(kind, attribute, path, reading.errors))
        content = reading.card if kind == CARD else reading.value
        if all(getattr(content, name, True) for name in ("seconds", "devices")):
            setattr(self, attribute, content)
            self.origins[attribute] = path

    def origins_of(self, name: str) -> list[Path]:
        """Return the files behind one input of metrics, such as `facts` or `step_times`."""
        if name == "moe_assignments":
            return [path for path, kind in self.files.items() if kind == name and path in self.sha256]
        behind = {key: path for key, path in self.origins.items() if _INPUTS.get(key, "facts") == name}
        return [behind["rank_step_times"]] if "rank_step_times" in behind else list(behind.values())


def read_stated(
    others: Iterable[Path], card_path: Path | None = None, config_path: Path | None = None
) -> Stated:
    """Read the card, metadata, configuration and side files among `others`.

    Of several of a kind the one nearest to the top counts. A card or configuration named by the
    caller must be readable; any other unreadable file is a finding.
    """
    others = [path for path in others if path.suffix.lower() in _STATING_SUFFIXES]
    if not others and card_path is None and config_path is None:
        return Stated()
    from ccl_bench import card as cards
    from ccl_bench import side_files

    stated = Stated()
    ordered = sorted(others, key=_precedence)
    if card_path:
        stated.keep(CARD, "card", card_path, cards.read_card)
        if not cards.is_card_file(card_path):
            fix = "name the YAML file that describes the workload; `ccl-bench validate` lists what one needs"
            raise InputError("is no workload card", where=str(card_path), fix=fix)
    if config_path:
        stated.keep(CONFIG, "config", config_path, side_files.read_train_config)
    readers: dict[str, tuple[str, Callable[[Path], Any]]] = {
        METADATA: ("metadata", side_files.read_metadata),
        "step_times_per_rank.json": ("rank_step_times", side_files.read_rank_step_times),
        "step_times.json": ("step_times", side_files.read_step_times),
        "step_durations.json": ("step_times", side_files.read_step_times),
        "training_metrics.json": ("training_metrics", side_files.read_training_metrics),
        **dict.fromkeys(side_files.MEMORY_FILE_NAMES, ("memory_stats", side_files.read_memory_stats)),
    }
    for path in ordered:
        suffix = path.suffix.lower()
        is_card = path.stem == "workload_card" or (suffix in _CARD_SUFFIXES and cards.is_card_file(path))
        if suffix in _CARD_SUFFIXES and stated.card is None and is_card:
            stated.read(CARD, "card", path, cards.read_card)
        elif suffix == ".toml" and stated.config is None and side_files.is_train_config_file(path):
            stated.read(CONFIG, "config", path, side_files.read_train_config)
        elif path.name in readers:
            attribute, reader = readers[path.name]
            if getattr(stated, attribute) is None:
                stated.read(path.name, attribute, path, reader)
        elif path.match(side_files.MOE_FILE_PATTERN):
            found = functools.partial(side_files.read_moe_assignments, before=stated.moe_assignments)
            stated.read("moe_assignments", "moe_assignments", path, found)
    return stated


_SECOND = {"step_durations.json", "memory_snapshot.json"}
"""Files that count where there is no other of their kind beside them."""


def _precedence(path: Path) -> tuple[int, bool, bool, str]:
    """Return the sort key of files: the top first, and in a folder those with the most information."""
    return len(path.parts), path.stem != "workload_card", path.name in _SECOND, str(path)


def _mistakes(kind: str, attribute: str, path: Path, errors: list[Issue]) -> Finding:
    """Return the finding about values that could not be used; the first is quoted."""
    first = errors[0]
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    message = f"{kind}: {first.path}: {first.message}{more}"
    touches = (_INPUTS.get(attribute, "facts"),)
    return Finding("file-mistakes", "warning", message, path.name, count=len(errors), touches=touches)
