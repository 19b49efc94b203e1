"""Opening a run: finding its traces, card and side files, and problems in them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import storage
from ccl_bench.analysis.facts import Facts
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.findings import Finding
from ccl_bench.base.registry import spelling
from ccl_bench.catalog import load_data
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice
from ccl_bench.run.completeness import RANK_MAP, completeness_findings, step_time_findings
from ccl_bench.run.documents import CEILING, RunDocuments, read_documents
from ccl_bench.run.facts import METADATA, contradictions, fact_sources, merge_facts
from ccl_bench.run.grouping import above, keep_one_run
from ccl_bench.storage import remote_errors
from ccl_bench.storage.files import LOG, MIB, ROLLBACK, read_text
from ccl_bench.trace import discovery, formats
from ccl_bench.trace.file_names import is_linked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ccl_bench.trace.formats import TraceFile

PROFILE_MODES = ("auto", "torch", "nsys")

_MOST_FILES_READ = 20
"""Number of other files whose beginning is read, to recognise what they are."""

_RANK_MAP_BYTES = 64 * MIB

_BESIDE_DATABASES = (ROLLBACK, LOG, "-shm")
"""How the names of files end that SQLite keeps beside a database."""

ENVIRONMENT = "environment.json"
"""Description of the machine that `ccl-bench collect` writes for people; no number uses it."""

REPORT = "report.html"
"""The report that `ccl-bench collect` writes next to the traces."""


@dataclass(slots=True)
class Run:
    """A run as found at one place, before any trace is parsed."""

    path: Path
    traces: list[TraceFile] = field(default_factory=list)
    """Traces of the chosen profile mode, in order of path."""
    others: list[Path] = field(default_factory=list)
    """Files that are neither traces nor understood."""
    facts: Facts = field(default_factory=Facts)
    documents: RunDocuments = field(default_factory=RunDocuments)
    """Card, metadata, configuration and side files as read."""
    findings: list[Finding] = field(default_factory=list)
    """All findings about the set of traces."""
    other_source: Run | None = None
    """The same run as another recorder saw it, whose traces are set aside; None if there is no other."""
    choice: StepChoice = EVERY_STEP
    """The steps of which numbers are computed."""

    @property
    def ranks(self) -> list[int]:
        """Ranks whose traces are present, sorted; unknown ones left out."""
        return sorted({trace.rank for trace in self.traces if trace.rank is not None})


OTHER_PROFILER = "other-profiler"
"""The finding that the chosen profile mode leaves out every trace."""


def open_run(
    place: str | Path,
    *,
    card: str | Path | None = None,
    config: str | Path | None = None,
    ceiling: str | Path | None = None,
    profile_mode: str = "auto",
    choice: StepChoice = EVERY_STEP,
    among: Sequence[Path] | None = None,
) -> Run:
    """Return the run at `place`: a directory, a single trace file, or the URL of either.

    `card`, `config` and `ceiling` name a workload card, a training configuration and output of nccl-tests
    elsewhere, `choice` the steps that numbers rest on, and `among` the only files of the directory that are
    looked at. Raises InputError if there is nothing to read and UsageError for an unknown profile mode.
    """
    run = discover_run(
        place,
        card=card,
        config=config,
        ceiling=ceiling,
        profile_mode=profile_mode,
        choice=choice,
        among=among,
    )
    fact_files = (path for path, kind in run.documents.files.items() if kind != CEILING)
    if run.traces or any(path.is_relative_to(run.path) for path in fact_files):
        return run
    raise _nothing_read(run, profile_mode)


def discover_run(
    place: str | Path,
    *,
    card: str | Path | None = None,
    config: str | Path | None = None,
    ceiling: str | Path | None = None,
    profile_mode: str = "auto",
    choice: StepChoice = EVERY_STEP,
    among: Sequence[Path] | None = None,
) -> Run:
    """Return the run at `place` like `open_run`, also if nothing in it can be read."""
    profile_mode = spelling(profile_mode)
    if profile_mode not in PROFILE_MODES:
        raise UsageError(f"unknown profile mode {profile_mode!r}", fix=f"one of: {', '.join(PROFILE_MODES)}")
    root = storage.to_path(place)
    with remote_errors(root):
        discovered = discovery.discover_traces(root, _rank_map(root), among)
        higher = above(root, discovered.traces)
        discovered.traces += higher.snapshots
        document_paths = [storage.to_path(p) if p else None for p in (card, config, ceiling)]
        documents = read_documents(
            discovered.others, *document_paths[:2], ceiling_path=document_paths[2], above=higher.files
        )
    if documents.device_samples:
        documents.device_samples = replace(documents.device_samples, ranks=_rank_map(root))
    # Modes choose between sources of the same thing; files of other profiles are used in each.
    in_mode = [
        trace
        for trace in discovered.traces
        if profile_mode in {"auto", trace.form.profile} or trace.form.profile not in PROFILE_MODES
    ]
    recorders = {trace.form.profile for trace in in_mode if "kernels" in trace.form.tables}
    # Two recordings of the same ranks would count everything twice: torch's own profiler comes first.
    are_two = profile_mode == "auto" and {"torch", "nsys"} <= recorders
    used: list[TraceFile] = []
    aside: list[TraceFile] = []
    for trace in in_mode:
        (aside if are_two and trace.form.profile == "nsys" else used).append(trace)
    used, exports = _without_exports(used)
    traces, stray_findings = keep_one_run(used, discovered.findings)
    sources = fact_sources(documents, traces)
    understood = {*documents.files, *documents.limits, root / RANK_MAP, root / ENVIRONMENT, root / REPORT}
    databases = {trace.path for trace in discovered.traces}
    understood |= {path.with_name(path.name + end) for path in databases for end in _BESIDE_DATABASES}
    others = [path for path in discovered.others if path not in understood and path.suffix != ".log"]
    run = Run(root, traces, others, merge_facts(sources), documents, choice=choice)
    findings = [
        *discovered.findings,
        *exports,
        *documents.findings,
        *contradictions(sources, documents, traces),
        *stray_findings,
        *step_time_findings(run.facts, traces, documents.rank_step_times),
    ]
    if left_out := [trace for trace in discovered.traces if trace not in in_mode and not recorders]:
        message = (
            f"--profile-mode {profile_mode} leaves out every trace of the run ({len(left_out)}): they are of "
            f"{recorder_of(left_out) or left_out[0].form.name}"
        )
        tables = sorted({table for trace in left_out for table in trace.form.tables})
        findings.append(Finding(OTHER_PROFILER, "error", message, touches=tuple(tables)))
    if aside:
        about_aside = completeness_findings(run.facts, aside, others)
        run.other_source = replace(run, traces=aside, findings=[*findings, *about_aside])
        message = (
            f"traces of {recorder_of(aside)} ({len(aside)}) are not used, "
            f"because {recorder_of(used)} recorded the run too"
        )
        findings.append(Finding("nsys-set-aside", "note", message, aside[0].relative, count=len(aside)))
    run.findings = [*findings, *completeness_findings(run.facts, traces, others)]
    return run


def _without_exports(traces: list[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces without those of Chakra's tools, if the run also has those of torch behind these."""
    of_chakra = {trace.relative: trace.form.name == "chakra" or is_linked(trace) for trace in traces}
    chakra, others = (
        [trace for trace in traces if of_chakra[trace.relative] is wanted] for wanted in (True, False)
    )
    if not chakra or not any("et_nodes" in trace.form.tables for trace in others):
        return traces, []
    message = f"Chakra's traces ({len(chakra)}) are not used, because the run also has the Execution Traces"
    return others, [Finding("chakra-set-aside", "note", message, chakra[0].relative, count=len(chakra))]


def recorder_of(traces: Iterable[TraceFile]) -> str:
    """Return the recorder of the device's work in these traces, as messages name it."""
    forms = [trace.form for trace in traces if "kernels" in trace.form.tables]
    return next((form.recorder or form.name for form in forms), "")


def _nothing_read(run: Run, profile_mode: str) -> InputError:
    """Return the error for a place where nothing can be read, with what was looked for."""
    measured = [path for path, kind in run.documents.files.items() if kind == CEILING]
    if error := _named_other(measured):
        return error
    errors = [finding for finding in run.findings if finding.severity == "error"]
    unreadable = [f"{finding.file} {finding.message}" for finding in errors]
    if unreadable:
        more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        fix = "check the files and their permissions"
        return InputError(unreadable[0] + more, where=str(run.path), fix=fix)
    is_folder = run.path.is_dir()
    if error := _named_other(run.others[:_MOST_FILES_READ]):
        return error
    what = f"no {profile_mode} trace" if profile_mode != "auto" else "no trace of a known format"
    format_names = ", ".join(form.name for form in formats.load())
    others = f"; it only has files such as {run.others[0].name}" if run.others and is_folder else ""
    if is_folder:
        what = f"{what} ({format_names}), no workload card and no side file such as {METADATA}{others}"
    return InputError(
        f"holds {what}" if is_folder else f"is {what} ({format_names})",
        where=str(run.path),
        fix="give the directory or file that the profiler wrote",
    )


def _named_other(paths: Iterable[Path]) -> InputError | None:
    """Return the error that names the kind of a file, if one of them is known and is no trace."""
    for path in paths:
        with contextlib.suppress(OSError, InputError):
            if other := other_file(storage.read_head(path, discovery.HEAD_BYTES)):
                return InputError(f"is {other.what}", where=str(path), fix=other.fix)
    return None


def _rank_map(root: Path) -> dict[str, int]:
    """Return {file: rank} from `ranks.json`, for traces that do not say whose they are."""
    path = root / RANK_MAP
    try:
        with remote_errors(root):
            if not root.is_dir() or not path.is_file():
                return {}
        return msgspec.json.decode(read_text(path, _RANK_MAP_BYTES), type=dict[str, int])
    except PermissionError as error:
        raise storage.unreadable(root, error) from error
    except msgspec.MsgspecError as error:
        raise InputError(
            f"does not map files to ranks: {error}",
            where=str(path),
            fix='write it as {"host1_trace.json": 0, "host2_trace.json": 1}',
        ) from error


@dataclass(frozen=True, slots=True)
class OtherFile:
    """One kind of file that people take for a trace."""

    what: str
    """Description, which follows the file's name and "is" in messages."""
    fix: str


def other_file(head: bytes) -> OtherFile | None:
    """Return the kind of a file that begins with `head` and is not a trace; None if unknown."""
    for row in load_data("other_files")["file"]:
        if all(mark.encode() in head for mark in row["marks"]):
            return OtherFile(row["is"], row["fix"])
    return None
