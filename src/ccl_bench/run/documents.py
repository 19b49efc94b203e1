"""What people and launchers wrote about a run: its card, metadata, configuration and side files, as read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding, Issue
from ccl_bench.trace.discovery import files_under

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ccl_bench.card import Card
    from ccl_bench.side_files import (
        DeviceSamples,
        MemoryStats,
        MoeAssignments,
        NcclTests,
        Prices,
        RankStepTimes,
        RunMetadata,
        RunStepTimes,
        SideFile,
        TrainConfig,
        TrainingMetrics,
    )

CARD = "workload card"
CEILING = "nccl_tests"
"""Of no run by itself: what a run is compared with."""

_SUFFIXES = (".yaml", ".yml", ".toml", ".json", ".txt", ".log", ".out", ".csv", ".prom")
"""Suffixes of all kinds of side files: no other file is looked into."""


@dataclass(slots=True)
class RunDocuments:
    """What people and launchers wrote about a run, as read; None if there is no such file."""

    card: Card | None = None
    metadata: RunMetadata | None = None
    config: TrainConfig | None = None
    step_times: RunStepTimes | None = None
    rank_step_times: RankStepTimes | None = None
    training_metrics: TrainingMetrics | None = None
    memory_stats: MemoryStats | None = None
    moe_assignments: MoeAssignments | None = None
    """Of all files that hold some, together, as the next two."""
    nccl_tests: NcclTests | None = None
    device_samples: DeviceSamples | None = None
    prices: Prices | None = None
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
    inputs: dict[Path, str] = field(default_factory=dict)
    """File that is used → the input of metrics that it gives, such as `facts` or `step_times`."""
    sha256: dict[Path, str] = field(default_factory=dict)
    """Hash of each file that was read."""

    def read(self, kind: SideFile, path: Path) -> None:
        """Keep the content of a file; one that cannot be read is a finding."""
        try:
            self.keep(kind, path)
        except InputError as error:
            self.limits[path] = "damaged, not used"
            # `where` may end in the line and column; the finding names the file.
            line, _, column = error.where.removeprefix(f"{path}:").partition(":")
            message = error.message
            if line.isdigit():
                message = f"line {line}" + (f", column {column}" if column else "") + f": {message}"
                message += f" ({error.fix})" if error.fix else ""
            code = "file-unreadable" if isinstance(error.__cause__, OSError) else "file-malformed"
            self._find(code, "error", message, kind, path)

    def keep(self, kind: SideFile, path: Path) -> None:
        """Keep the content of a file; raise InputError if it cannot be read.

        Of a file without anything usable nothing is kept, so that the next source counts.
        """
        self.files[path] = kind.label(path)
        reading = kind.read(path, before=getattr(self, kind.attribute)) if kind.adds_up else kind.read(path)
        try:
            self.sha256[path] = storage.sha256(path)
        except OSError as error:  # it was removed since it was read
            raise storage.unreadable(path, error) from error
        self.issues += reading.issues
        errors = reading.errors
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        mistakes = ": ".join(filter(None, (errors[0].path, errors[0].message))) + more if errors else ""
        if kind.holds and not getattr(reading.value, kind.holds):
            self.limits[path] = "holds nothing usable, not used"
            message = "holds nothing usable" + (f": {mistakes}" if mistakes else "")
            self.findings.append(Finding("file-unusable", "error", message, path.name, touches=(kind.gives,)))
            return
        if errors:
            self.limits[path] = "read in part"
            self._find("file-mistakes", "warning", mistakes, kind, path, len(errors))
        setattr(self, kind.attribute, reading.value)
        self.origins[kind.attribute] = path
        self.inputs[path] = kind.gives

    def _find(
        self, code: str, severity: str, message: str, kind: SideFile, path: Path, count: int = 1
    ) -> None:
        label = kind.label(path)
        text = message if label == path.name else f"{label}: {message}"
        self.findings.append(Finding(code, severity, text, path.name, count=count, touches=(kind.gives,)))

    def leave_out(self, path: Path, better: Path) -> None:
        """Note that a file is not used because a better one is."""
        self.inputs.pop(path, None)
        self.limits[path] = f"not used; {better.name} is used instead"
        fix = "keep only the file that the numbers should come from"
        self.issues.append(Issue("note", f"is not used, because {better.name} is", file=str(path), fix=fix))

    def origins_of(self, name: str) -> list[Path]:
        """Return the files behind one input of metrics, such as `facts` or `step_times`."""
        return [path for path, gives in self.inputs.items() if gives == name]


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
    named = (card_path, config_path, ceiling_path)
    files_above, files = (
        [path for path in paths if path.suffix.lower() in _SUFFIXES] for paths in (above, others)
    )
    if not files_above and not files and named == (None, None, None):
        return RunDocuments()
    from ccl_bench import card as cards  # the card's models take longer to load than all metrics
    from ccl_bench.side_files import kinds

    documents = RunDocuments()
    if card_path:
        documents.keep(kinds.CARD, card_path)
        if not cards.is_card_file(card_path):
            fix = "name the YAML file that describes the workload; `ccl-bench validate` lists its mistakes"
            raise InputError("is not a workload card", where=str(card_path), fix=fix)
    if config_path:
        documents.keep(kinds.TRAIN_CONFIG, config_path)
    if ceiling_path:
        is_folder = ceiling_path.is_dir()
        for path in files_under(ceiling_path)[0] if is_folder else [ceiling_path]:
            if not is_folder or kinds.NCCL_TESTS.recognises(path):
                documents.keep(kinds.NCCL_TESTS, path)
        if documents.nccl_tests is None:
            where = str(ceiling_path)
            why = next((issue.message for issue in documents.issues if issue.file.startswith(where)), "")
            fix = "give the output of all_reduce_perf or a similar program, or a folder of such files"
            raise InputError(why or "contains no output of nccl-tests", where=where, fix=fix)

    def precedence(path: Path) -> tuple[int, bool, int, str]:
        """Return the sort key of files: the top first, and in a folder those with the most information."""
        kind = kinds.kind_named(path.name)
        order = kind.file_names.index(path.name) if kind and path.name in kind.file_names else 0
        return len(path.parts), path.stem != "workload_card", order, str(path)

    for path in [*sorted(files_above, key=precedence), *sorted(files, key=precedence)]:
        kind = kinds.kind_of(path)
        if kind is None or (kind is kinds.NCCL_TESTS and ceiling_path):
            continue
        if kind.adds_up or getattr(documents, kind.attribute) is None:
            documents.read(kind, path)
        elif kind.file_names:
            documents.leave_out(path, documents.origins[kind.attribute])
    if {"step_times", "rank_step_times"} <= documents.origins.keys():
        documents.leave_out(documents.origins["step_times"], documents.origins["rank_step_times"])
    return documents
