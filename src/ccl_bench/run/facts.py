"""The facts of a run, merged from what people and launchers wrote.

Each fact comes from its first source; where sources contradict each other, a finding says so.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.analysis.facts import Fact, Facts, fact, first
from ccl_bench.base.errors import InputError, NotMeasurable
from ccl_bench.base.findings import Finding, Issue
from ccl_bench.catalog.devices import models
from ccl_bench.catalog.dtypes import dtype
from ccl_bench.trace.discovery import files_under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.card import Card
    from ccl_bench.side_files import (
        DeviceSamples,
        MemoryStats,
        MoeAssignments,
        NcclTests,
        RankStepTimes,
        RunMetadata,
        StepTimes,
        TrainConfig,
        TrainingMetrics,
    )
    from ccl_bench.trace.formats import TraceFile

METADATA = "run_metadata.json"
CARD = "workload card"
CONFIG = "training configuration"
CEILING = "nccl_tests"
"""Of no run by itself: what a run is compared with."""

_GIVEN = ("step_times", "training_metrics", "memory_stats", "moe_assignments", "device_samples", CEILING)
_INPUTS = {name: name for name in _GIVEN} | {"rank_step_times": "step_times"}
"""Attribute of RunDocuments → the input of metrics that it becomes; the others become facts."""

_CONTENTS = ("seconds", "measured", "devices", "records", "series")
"""Attributes of what a side file holds, of which it has one; where that is empty, it holds nothing."""

_TOGETHER = frozenset({"moe_assignments", "device_samples", CEILING})
"""Inputs that several files make up."""

_NOTHING = "holds nothing usable"

_CARD_SUFFIXES = (".yaml", ".yml")
_STATING_SUFFIXES = (*_CARD_SUFFIXES, ".toml", ".json", ".txt", ".log", ".out", ".csv", ".prom")


@dataclass(slots=True)
class RunDocuments:
    """What people and launchers wrote about a run, as read; None if there is no such file."""

    card: Card | None = None
    metadata: RunMetadata | None = None
    config: TrainConfig | None = None
    step_times: StepTimes | None = None
    rank_step_times: RankStepTimes | None = None
    training_metrics: TrainingMetrics | None = None
    memory_stats: MemoryStats | None = None
    moe_assignments: MoeAssignments | None = None
    """Of all files that hold some, together, as the next two."""
    nccl_tests: NcclTests | None = None
    device_samples: DeviceSamples | None = None
    files: dict[Path, str] = field(default_factory=dict)
    """What each file was read as."""
    limits: dict[Path, str] = field(default_factory=dict)
    """Why a file is not used, or not all of it."""
    issues: list[Issue] = field(default_factory=list)
    """All mistakes in the files."""
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
            self.limits[path] = "damaged, not used"
            self.findings.append(_not_read(kind, attribute, path, error))

    def keep(self, kind: str, attribute: str, path: Path, read: Callable[[Path], Any]) -> None:
        """Keep the content of a file as `attribute`; raise InputError if it cannot be read.

        Of a file without anything usable nothing is kept, so that the next source counts.
        """
        self.files[path] = kind
        reading = read(path)
        self.sha256[path] = storage.sha256(path)
        self.issues += reading.issues
        content = reading.card if kind == CARD else reading.value
        if not all(getattr(content, name, True) for name in _CONTENTS):
            self.limits[path] = f"{_NOTHING}, not used"
            self.findings.append(_unusable(attribute, path, reading.errors))
            return
        if reading.errors:
            self.limits[path] = "read in part"
            self.findings.append(_mistakes(kind, attribute, path, reading.errors))
        setattr(self, attribute, content)
        self.origins[attribute] = path

    def leave_out(self, path: Path, better: Path) -> None:
        """Note that a file is not used because a better one is."""
        self.limits[path] = f"not used; {better.name} is used instead"
        fix = "keep only the file that the numbers should come from"
        self.issues.append(Issue("note", f"is not used, because {better.name} is", file=str(path), fix=fix))

    def origins_of(self, name: str) -> list[Path]:
        """Return the files behind one input of metrics, such as `facts` or `step_times`."""
        if name in _TOGETHER:
            return [path for path, kind in self.files.items() if kind == name and path in self.sha256]
        behind = {key: path for key, path in self.origins.items() if _INPUTS.get(key, "facts") == name}
        return [behind["rank_step_times"]] if "rank_step_times" in behind else list(behind.values())


def read_documents(
    others: Iterable[Path],
    card_path: Path | None = None,
    config_path: Path | None = None,
    *,
    ceiling_path: Path | None = None,
    above: Iterable[Path] = (),
) -> RunDocuments:
    """Read the card, metadata, configuration and side files among `others`, and in folders above theirs.

    Of several of a kind the one nearest to the top counts. A card, configuration or output of nccl-tests
    that the caller names must be readable; any other unreadable file is a finding.
    """
    ordered = [*sorted(above, key=_precedence), *sorted(others, key=_precedence)]
    others = [path for path in ordered if path.suffix.lower() in _STATING_SUFFIXES]
    if not others and card_path is None and config_path is None and ceiling_path is None:
        return RunDocuments()
    from ccl_bench import card as cards
    from ccl_bench import side_files

    documents = RunDocuments()
    if card_path:
        documents.keep(CARD, "card", card_path, cards.read_card)
        if not cards.is_card_file(card_path):
            fix = "name the YAML file that describes the workload; `ccl-bench validate` lists its mistakes"
            raise InputError("is not a workload card", where=str(card_path), fix=fix)
    if config_path:
        documents.keep(CONFIG, "config", config_path, side_files.read_train_config)
    if ceiling_path:
        _keep_ceiling(documents, ceiling_path)
    for path in others:
        suffix = path.suffix.lower()
        is_card = path.stem == "workload_card" or (suffix in _CARD_SUFFIXES and cards.is_card_file(path))
        if suffix in _CARD_SUFFIXES and documents.card is None and is_card:
            documents.read(CARD, "card", path, cards.read_card)
        elif suffix == ".toml" and documents.config is None and side_files.is_train_config_file(path):
            documents.read(CONFIG, "config", path, side_files.read_train_config)
        else:
            _read_side_file(documents, path, has_ceiling=ceiling_path is not None)
    if {"step_times", "rank_step_times"} <= documents.origins.keys():
        documents.leave_out(documents.origins["step_times"], documents.origins["rank_step_times"])
    return documents


def _read_side_file(documents: RunDocuments, path: Path, *, has_ceiling: bool) -> None:
    """Keep the content of a file if its name or content is that of a side file."""
    from ccl_bench import side_files

    if (entry := _readers().get(path.name)) is not None:
        attribute, reader = entry
        if getattr(documents, attribute) is None:
            documents.read(path.name, attribute, path, reader)
        else:
            documents.leave_out(path, documents.origins[attribute])
    elif path.match(side_files.MOE_FILE_PATTERN):
        assignments = functools.partial(side_files.read_moe_assignments, before=documents.moe_assignments)
        documents.read("moe_assignments", "moe_assignments", path, assignments)
    elif not has_ceiling and side_files.is_nccl_tests_file(path):
        tests = functools.partial(side_files.read_nccl_tests, before=documents.nccl_tests)
        documents.read(CEILING, CEILING, path, tests)
    elif side_files.is_device_samples_file(path):
        samples = functools.partial(side_files.read_device_samples, before=documents.device_samples)
        documents.read("device_samples", "device_samples", path, samples)


def _keep_ceiling(documents: RunDocuments, place: Path) -> None:
    """Keep what nccl-tests measured, of a file or those in a folder; InputError for nothing."""
    from ccl_bench import side_files

    for path in filter(side_files.is_nccl_tests_file, files_under(place)[0]) if place.is_dir() else [place]:
        read = functools.partial(side_files.read_nccl_tests, before=documents.nccl_tests)
        documents.keep(CEILING, CEILING, path, read)
    if documents.nccl_tests is None or not documents.nccl_tests.measured:
        why = next((issue.message for issue in documents.issues if issue.file.startswith(str(place))), "")
        fix = "give the output of all_reduce_perf or a similar program, or a folder of such files"
        raise InputError(why or "contains no output of nccl-tests", where=str(place), fix=fix)


def _readers() -> dict[str, tuple[str, Callable[[Path], Any]]]:
    """Return the attribute of RunDocuments that a side file of each name becomes, and what reads it."""
    from ccl_bench import side_files

    return {
        METADATA: ("metadata", side_files.read_metadata),
        "step_times_per_rank.json": ("rank_step_times", side_files.read_rank_step_times),
        "step_times.json": ("step_times", side_files.read_step_times),
        "step_durations.json": ("step_times", side_files.read_step_times),
        "training_metrics.json": ("training_metrics", side_files.read_training_metrics),
        **dict.fromkeys(side_files.MEMORY_FILE_NAMES, ("memory_stats", side_files.read_memory_stats)),
    }


_SECOND = {"step_durations.json", "memory_snapshot.json"}
"""Files that count where there is no other of their kind beside them."""


def _precedence(path: Path) -> tuple[int, bool, bool, str]:
    """Return the sort key of files: the top first, and in a folder those with the most information."""
    return len(path.parts), path.stem != "workload_card", path.name in _SECOND, str(path)


def _mistakes(kind: str, attribute: str, path: Path, errors: list[Issue]) -> Finding:
    """Return the finding about values that could not be used; the first is quoted."""
    message = f"{_kind(kind, path)}{_quoted(errors)}"
    touches = (_INPUTS.get(attribute, "facts"),)
    return Finding("file-mistakes", "warning", message, path.name, count=len(errors), touches=touches)


def _not_read(kind: str, attribute: str, path: Path, error: InputError) -> Finding:
    """Return the finding about a file that the system does not give, or whose content cannot be read."""
    code = "file-unreadable" if isinstance(error.__cause__, OSError) else "file-malformed"
    line, _, column = error.where.removeprefix(f"{path}:").partition(":")
    place = f"line {line}" + (f", column {column}" if column else "") if line.isdigit() else ""
    fix = f" ({error.fix})" if place and error.fix else ""
    message = f"{_kind(kind, path)}{place and place + ': '}{error.message}{fix}"
    touches = (_INPUTS.get(attribute, "facts"),)
    return Finding(code, "error", message, path.name, touches=touches)


def _unusable(attribute: str, path: Path, errors: list[Issue]) -> Finding:
    """Return the finding about a file of which no value could be used; the first mistake is quoted."""
    message = f"{_NOTHING}: {_quoted(errors)}" if errors else _NOTHING
    touches = (_INPUTS.get(attribute, "facts"),)
    return Finding("file-unusable", "error", message, path.name, touches=touches)


def _quoted(errors: list[Issue]) -> str:
    """Return the first of some mistakes with its place, and how many more there are."""
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return ": ".join(filter(None, (errors[0].path, errors[0].message))) + more


def _kind(kind: str, path: Path) -> str:
    """Return the kind of a file as the beginning of a message, empty if its name states the kind."""
    return "" if path.name == kind else f"{kind}: "


Source = dict[str, Fact[Any]]

TRACES = "distributedInfo of the traces"
COUNTED = "number of traces"

CODE = "facts-disagree"

ROUNDED = {"num_params": 0.05, "num_params_embedding": 0.05, "num_params_active": 0.05}
"""Facts that people round, with the share by which two sources may differ and still agree."""


def fact_sources(documents: RunDocuments, traces: Sequence[TraceFile]) -> list[Source]:
    """Return the facts by source: metadata before card before catalog before configuration and traces."""
    seen = _from_traces(traces)
    others = [_from_metadata(documents.metadata), _from_card(documents.card), _from_catalog(documents.card)]
    world_size = first(*(source.get("world_size") for source in (*others, seen)))
    return [*others, _from_config(documents.config, world_size.value if world_size else None), seen]


def merge_facts(sources: Sequence[Source]) -> Facts:
    """Return the facts of a run, each from the first source that has it."""
    names = dict.fromkeys(name for source in sources for name in source)
    return Facts(**{name: first(*(source.get(name) for source in sources)) for name in names})


def contradictions(
    sources: Sequence[Source], documents: RunDocuments, traces: Sequence[TraceFile]
) -> list[Finding]:
    """Return a finding for each fact on which two sources do not agree.

    Unwritten defaults of the configuration contradict nothing, nor does the number of traces: some may lack.
    """
    assumed = _assumed(documents.config)
    names = dict.fromkeys(name for source in sources for name in source)
    findings = []
    for name in names:
        values = [source[name] for source in sources if name in source]
        compared = [f for f in values if not (f.source == CONFIG and name in assumed) and f.source != COUNTED]
        if any(not _agree(name, compared[0].value, other.value) for other in compared[1:]):
            findings.append(_contradiction(name, compared))
    sizes = sorted({trace.world_size for trace in traces if trace.world_size is not None})
    if len(sizes) > 1:
        message = f"the traces state that the job had {' and '.join(map(str, sizes))} ranks"
        touches = (fact_table("world_size"),)
        findings.append(Finding(CODE, "warning", message, count=len(sizes), touches=touches))
    return findings


def _contradiction(name: str, facts: Sequence[Fact[Any]]) -> Finding:
    values = " and ".join(f"{each.value} in {_place(each.source)}" for each in facts)
    message = f"{name} is {values}; the first is used"
    return Finding(CODE, "warning", message, count=len(facts), touches=(fact_table(name),))


def device_contradictions(inputs: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if the devices that traces saw are not the one that is stated."""
    devices, facts = inputs.get("devices"), inputs["facts"]
    if devices is None or not facts.device:
        return []
    stated_models = set(models(facts.device.value))
    seen = {name: models(name) for name in devices["name"].unique().drop_nulls().sort() if name}
    is_known = stated_models and seen and all(seen.values())
    if not is_known or any(stated_models & {*names} for names in seen.values()):
        return []
    message = (
        f"device is {facts.device.value} in {_place(facts.device.source)}, "
        f"but {' and '.join(seen)} in the traces, which are used"
    )
    return [Finding(CODE, "warning", message, count=2, touches=("devices",))]


def fact_table(name: str) -> str:
    """Return the name under which a finding about one fact affects the numbers that use the fact."""
    return f"facts.{name}"


def _place(source: str) -> str:
    return f"the {source}" if source in {CARD, CONFIG} or source.startswith("catalog") else source


def _agree(name: str, one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return _plain(one) == _plain(other) or (name == "precision" and _peak(one) == _peak(other) != "")
    if name in ROUNDED and isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= ROUNDED[name] * max(abs(one), abs(other))
    return one == other


def _peak(precision: str) -> str:
    """Return the dtype that peaks of devices are listed under for a precision; empty for an unknown one."""
    try:
        return dtype(precision).peak
    except NotMeasurable:
        return ""


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.lower())


def _assumed(config: TrainConfig | None) -> set[str]:
    """Return the facts of a configuration that are defaults, not written values."""
    if config is None:
        return set()
    axes = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
    written = {
        "global_batch_size": (config.training, ("global_batch_size", "local_batch_size")),
        "seq_len": (config.training, ("seq_len",)),
        "pp_schedule": (config.parallelism, ("schedule",)),
        **{axis: (config.parallelism, (axis,)) for axis in axes},
    }
    return {name for name, (part, fields) in written.items() if not {*fields} & {*part.model_fields_set}}


def _facts_of(source: str, **values: Any) -> Source:
    """Return the values that are given as facts of one source."""
    facts = {name: fact(value, source) for name, value in values.items()}
    return {name: value for name, value in facts.items() if value is not None}


def _from_metadata(metadata: RunMetadata | None) -> Source:
    if metadata is None:
        return {}
    return _facts_of(
        METADATA,
        world_size=metadata.world_size,
        global_batch_size=metadata.global_batch_size,
        seq_len=metadata.seq_len,
        tokens_per_step=metadata.tokens_per_step,
        model_flops_per_token=metadata.model_flops_per_token,
        gpu_peak_tflops=metadata.gpu_peak_tflops,
        gpu_hbm_bytes=metadata.gpu_hbm_bytes,
        **metadata.objectives,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


_AXES = {"tp", "pp", "cp", "ep"}


def _from_card(card: Card | None) -> Source:
    if card is None:
        return {}
    plan, model, sizes = card.parallelism, card.model, card.model.architecture
    device, serving = card.hardware.device, card.data.serving
    return _facts_of(
        CARD,
        world_size=card.world_size,
        global_batch_size=card.global_batch_size,
        batch_sizes=card.data.batch_sizes or None,
        seq_len=card.data.seq_len,
        request_rate=_text(serving.request_rate),
        **serving.model_dump(include={"num_prompts", "max_concurrency", "max_tokens"}),
        device=device.model if device.type is None or str(device.type).upper() != "CPU" else None,
        precision=_text(model.precision),
        phase=_text(model.phase),
        framework=card.framework.name,
        is_moe=True if model.is_moe or sizes.num_experts else model.is_moe,
        devices_per_node=device.devices_per_node,
        scale_up_gbps=card.hardware.network.bandwidth.scale_up,
        scale_out_gbps=card.hardware.network.bandwidth.scale_out,
        dp=plan.dp if plan.dp_replicate is None and plan.dp_shard is None else None,
        dp_replicate=plan.dp_replicate,
        dp_shard=plan.dp_shard,
        **plan.model_dump(include=_AXES),
        microbatches=card.microbatches,
        pp_schedule=plan.schedule,
        virtual_stages=plan.virtual_stages,
        num_params=sizes.num_params,
        num_params_embedding=sizes.num_params_embedding,
        num_experts=sizes.num_experts,
        num_params_active=sizes.num_params_active,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
    )


def _from_catalog(card: Card | None) -> Source:
    """Return the architecture of a public model that the card names by its address."""
    if card is None or not card.hf_url:
        return {}
    from ccl_bench.catalog.models import model

    try:
        architecture = model("/".join(card.hf_url.rstrip("/").split("/")[-2:]))
    except NotMeasurable:
        return {}
    return _facts_of(
        f"catalog, {architecture.name}",
        is_moe=architecture.experts > 0,
        num_params=architecture.parameters,
        num_params_embedding=architecture.lookup_parameters,
        num_experts=architecture.experts or None,
        num_params_active=architecture.active_parameters if architecture.experts else None,
        num_layers=architecture.layers,
        num_heads=architecture.heads,
        head_dim=(architecture.qk_head_dim + architecture.v_head_dim) // 2,
    )


def _from_config(config: TrainConfig | None, world_size: int | None) -> Source:
    """Return the facts of the configuration; degrees and sizes of -1 are resolved if the ranks are known."""
    if config is None:
        return {}
    plan, training = config.parallelism, config.training
    batch, shards = training.global_batch_size, plan.dp_shard
    if world_size:
        batch, shards = config.global_batch_size(world_size), config.dp_shard(world_size)
    return _facts_of(
        CONFIG,
        global_batch_size=batch if batch and batch > 0 else None,
        seq_len=training.seq_len,
        phase="training",
        precision="fp8" if config.is_in_float8 else None,
        dp_replicate=plan.dp_replicate,
        dp_shard=shards if shards and shards > 0 else None,
        **plan.model_dump(include=_AXES),
        pp_schedule=plan.schedule if plan.pp and plan.pp > 1 else None,
    )


def _from_traces(traces: Sequence[TraceFile]) -> Source:
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    if len(sizes) == 1:
        return _facts_of(TRACES, world_size=sizes.pop())
    ranks = {trace.rank for trace in traces if trace.form.of_rank}
    if not sizes and len(ranks) > 1 and ranks == set(range(len(ranks))):
        return _facts_of(COUNTED, world_size=len(ranks))
    return {}
