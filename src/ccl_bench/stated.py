"""What people and launchers wrote about a run: card, metadata, configuration and side files as read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.errors import InputError
from ccl_bench.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ccl_bench.card import (
        Card,
        Issue,
        RankStepTimes,
        RunMetadata,
        StepTimes,
        TrainConfig,
        TrainingMetrics,
    )

METADATA = "run_metadata.json"
CARD = "workload card"
CONFIG = "training configuration"

_INPUTS = {name: name for name in ("step_times", "training_metrics")} | {"rank_step_times": "step_times"}
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
        """Keep the content of a file as `attribute`; one that cannot be read is a finding.

        Of a file of durations without a single usable one nothing is kept, so that the next source counts.
        """
        self.files[path] = kind
        try:
            reading = read(path)
            self.sha256[path] = storage.sha256(path)
        except InputError as error:
            touches, message = (_INPUTS.get(attribute, "facts"),), f"{kind}: {error.message}"
            self.findings.append(Finding("file-unreadable", "error", message, path.name, touches=touches))
            return
        self.issues += reading.issues
        content = reading.card if kind == CARD else reading.value
        if getattr(content, "seconds", True):
            setattr(self, attribute, content)
            self.origins[attribute] = path

    def origins_of(self, name: str) -> list[Path]:
        """Return the files behind one input of metrics: `facts`, `step_times` or `training_metrics`."""
        behind = {key: path for key, path in self.origins.items() if _INPUTS.get(key, "facts") == name}
        return [behind["rank_step_times"]] if "rank_step_times" in behind else list(behind.values())


def stated_in(others: Iterable[Path], card_path: Path | None) -> Stated:
    """Read the card, metadata, configuration and side files among `others`.

    Of several of a kind the one nearest to the top counts. A card named by the caller must be
    readable; any other unreadable file is a finding.
    """
    others = [path for path in others if path.suffix.lower() in _STATING_SUFFIXES]
    if not others and card_path is None:
        return Stated()
    from ccl_bench import card as cards

    stated = Stated()
    ordered = sorted(others, key=_precedence)
    if card_path:
        reading = cards.read_card(card_path)
        stated.card, stated.files[card_path] = reading.card, CARD
        stated.origins["card"], stated.sha256[card_path] = card_path, storage.sha256(card_path)
        stated.issues += reading.issues
    side_files: dict[str, tuple[str, Callable[[Path], Any]]] = {
        METADATA: ("metadata", cards.read_metadata),
        "step_times_per_rank.json": ("rank_step_times", cards.read_rank_step_times),
        "step_times.json": ("step_times", cards.read_step_times),
        "step_durations.json": ("step_times", cards.read_step_times),
        "training_metrics.json": ("training_metrics", cards.read_training_metrics),
    }
    for path in ordered:
        suffix = path.suffix.lower()
        if suffix in _CARD_SUFFIXES and stated.card is None and cards.is_card_file(path):
            stated.read(CARD, "card", path, cards.read_card)
        elif suffix == ".toml" and stated.config is None and cards.is_train_config_file(path):
            stated.read(CONFIG, "config", path, cards.read_train_config)
        elif path.name in side_files:
            attribute, reader = side_files[path.name]
            if getattr(stated, attribute) is None:
                stated.read(path.name, attribute, path, reader)
    return stated


def _precedence(path: Path) -> tuple[int, bool, bool, str]:
    """Return the sort key of files: the top first, and `step_times.json` before `step_durations.json`."""
    return len(path.parts), path.stem != "workload_card", path.name == "step_durations.json", str(path)
