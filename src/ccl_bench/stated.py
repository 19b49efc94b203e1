"""What people and launchers wrote about a run, and the facts that follow, each from its first source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.analysis.facts import Fact, Facts, fact, first
from ccl_bench.errors import InputError, NotMeasurable
from ccl_bench.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
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
    from ccl_bench.trace.discovery import TraceFile

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


def facts_from(stated: Stated, traces: Sequence[TraceFile]) -> Facts:
    """Return the facts of a run: metadata before card before configuration before catalog and traces."""
    sources = [
        _from_metadata(stated.metadata),
        _from_card(stated.card),
        _from_catalog(stated.card),
        _from_config(stated.config),
        _from_traces(traces),
    ]
    names = dict.fromkeys(name for source in sources for name in source)
    return Facts(**{name: first(*(source.get(name) for source in sources)) for name in names})


def _known(source: str, **values: Any) -> dict[str, Fact[Any]]:
    """Return the values that are given as facts of one source."""
    facts = {name: fact(value, source) for name, value in values.items()}
    return {name: found for name, found in facts.items() if found is not None}


def _from_metadata(metadata: RunMetadata | None) -> dict[str, Fact[Any]]:
    if metadata is None:
        return {}
    return _known(
        METADATA,
        world_size=metadata.world_size,
        global_batch_size=metadata.global_batch_size,
        seq_len=metadata.seq_len,
        tokens_per_step=metadata.tokens_per_step,
        model_flops_per_token=metadata.model_flops_per_token,
        gpu_peak_tflops=metadata.gpu_peak_tflops,
        gpu_hbm_bytes=metadata.gpu_hbm_bytes,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _from_card(card: Card | None) -> dict[str, Fact[Any]]:
    if card is None:
        return {}
    plan, model, sizes = card.parallelism, card.model, card.model.architecture
    device = card.hardware.device
    return _known(
        CARD,
        world_size=card.world_size,
        global_batch_size=card.global_batch_size,
        seq_len=card.data.seq_len,
        device=device.model if device.type is None or str(device.type).upper() != "CPU" else None,
        precision=_text(model.precision),
        phase=_text(model.phase),
        is_moe=True if model.is_moe or sizes.num_experts else model.is_moe,
        devices_per_node=device.devices_per_node,
        scale_up_gbps=card.hardware.network.bandwidth.scale_up,
        scale_out_gbps=card.hardware.network.bandwidth.scale_out,
        dp_replicate=plan.dp_replicate,
        dp_shard=plan.dp_shard,
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        microbatches=card.microbatches,
        pp_schedule=plan.schedule,
        virtual_stages=plan.virtual_stages,
        num_params=sizes.num_params,
        num_params_embedding=sizes.num_params_embedding,
        num_params_active=sizes.num_params_active,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
    )


def _from_catalog(card: Card | None) -> dict[str, Fact[Any]]:
    """Return the architecture of a public model that the card names by its address."""
    if card is None or not card.hf_url:
        return {}
    from ccl_bench.catalog.models import model

    try:
        found = model("/".join(card.hf_url.rstrip("/").split("/")[-2:]))
    except NotMeasurable:
        return {}
    return _known(
        f"catalog, {found.name}",
        is_moe=found.experts > 0,
        num_params=found.parameters,
        num_params_embedding=found.lookup_parameters,
        num_params_active=found.active_parameters if found.experts else None,
        num_layers=found.layers,
        num_heads=found.heads,
        head_dim=(found.qk_head_dim + found.v_head_dim) // 2,
    )


def _from_config(config: TrainConfig | None) -> dict[str, Fact[Any]]:
    if config is None:
        return {}
    plan, training = config.parallelism, config.training
    batch = max(training.global_batch_size or 0, 0) or None
    return _known(
        CONFIG,
        global_batch_size=batch,
        seq_len=training.seq_len,
        phase="training",
        dp_replicate=plan.dp_replicate,
        dp_shard=plan.dp_shard if plan.dp_shard and plan.dp_shard > 0 else None,
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        pp_schedule=plan.schedule if plan.pp and plan.pp > 1 else None,
    )


def _from_traces(traces: Sequence[TraceFile]) -> dict[str, Fact[Any]]:
    said = {trace.world_size for trace in traces if trace.world_size is not None}
    if len(said) == 1:
        return _known("distributedInfo of the traces", world_size=said.pop())
    ranks = {trace.rank for trace in traces}
    if not said and len(ranks) > 1 and ranks == set(range(len(ranks))):
        return _known("number of traces", world_size=len(ranks))
    return {}
