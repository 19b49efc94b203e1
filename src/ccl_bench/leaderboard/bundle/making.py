"""From a run that was measured to the files of its bundle; the same run gives the same files."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import __version__, storage
from ccl_bench.base.errors import InputError
from ccl_bench.comparison import fields_of
from ccl_bench.leaderboard.bundle.environment import environment_of
from ccl_bench.leaderboard.store.bundle import (
    CARD,
    PROVENANCE,
    REPORT,
    RESULTS,
    BundleProvenance,
    TraceFile,
    bundle_id,
)
from ccl_bench.result import to_json as results_json
from ccl_bench.result.report_data import to_json as report_json
from ccl_bench.run.completeness import RANK_MAP
from ccl_bench.run.stated import CARD as CARD_KIND

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ccl_bench.result import Result
    from ccl_bench.result.report_data import ReportData
    from ccl_bench.run import Run


@dataclass(frozen=True, slots=True)
class Made:
    """A bundle that is ready to be published."""

    id: str
    folder: Path
    """Folder with its files and nothing else."""


def made(
    run: Run,
    observed: ReportData,
    folder: Path,
    *,
    metrics: Collection[str] | None = None,
    storage: str | None = None,
    trace_url: str | None = None,
) -> Made:
    """Write the bundle of a run into an empty folder.

    `metrics` are those that the other side knows, all unless given. `storage` is an address below which the
    traces get a folder of their own, `trace_url` one where they are already. Paths of this machine are left
    out, and so are the names of files that no number rests on.
    """
    card = run.stated.origins.get("card")
    if card is None:
        fix = "write workload_card.yaml beside the traces; ccl-bench new makes one to fill in"
        raise InputError(
            "has no workload card, without which nobody knows what ran", where=str(run.path), fix=fix
        )
    (folder / CARD).write_bytes(card.read_bytes())
    told = _without_paths(run, observed, metrics)
    for name, text in ((RESULTS, results_json(told.results)), (REPORT, report_json(told))):
        of_run = anywhere(text, run.path, name_of(run))
        (folder / name).write_bytes(anywhere(of_run, card, CARD))
    provenance = _provenance(run, told.results)
    if storage:
        trace_url = f"{storage.rstrip('/')}/{recording_of(provenance, name_of(run))[:16]}"
    provenance = msgspec.structs.replace(provenance, trace_url=trace_url)
    encoded = msgspec.json.encode(provenance, order="deterministic")
    (folder / PROVENANCE).write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
    return Made(bundle_id(folder), folder)


def recording_of(made: BundleProvenance, otherwise: str) -> str:
    """Return the hash of what was recorded: equal for bundles that differ in what is said of it.

    It is that of the traces; of the other files where there is none, and of `otherwise` without both.
    """
    digests = sorted(trace.sha256 for trace in made.traces) or sorted(made.files.values()) or [otherwise]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def name_of(run: Run) -> str:
    """Return what a run is called: the name of its directory, or of its only file."""
    return run.path.name or "run"


def files_of(run: Run) -> dict[str, Path]:
    """Return every file that the numbers of a run rest on, by its name below the run, without the card."""
    folder = run.path if run.path.is_dir() else run.path.parent
    stated = [path for path, kind in run.stated.files.items() if kind != CARD_KIND]
    ranks = folder / RANK_MAP
    within = [path for path in (*stated, ranks) if path.is_relative_to(folder) and path.is_file()]
    named = {trace.relative.removesuffix(f"#{trace.part}"): trace.path for trace in run.traces}
    return named | {path.relative_to(folder).as_posix(): path for path in within}


def _provenance(run: Run, results: list[Result]) -> BundleProvenance:
    files = files_of(run)
    known = {trace.file: trace.sha256 for result in results for trace in result.provenance.traces}
    traces: dict[str, TraceFile] = {}
    for trace in run.traces:
        name = trace.relative.removesuffix(f"#{trace.part}")
        digest = known.get(trace.relative) or storage.sha256(trace.path)
        is_shared = name in traces
        rank = None if is_shared else trace.rank
        traces[name] = TraceFile(name, digest, trace.size, trace.form.name, rank)
    return BundleProvenance(
        run=name_of(run),
        tool_version=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        traces=[traces[name] for name in sorted(traces)],
        files={name: storage.sha256(files[name]) for name in sorted(files.keys() - traces.keys())},
        metric_revisions={result.metric: result.provenance.metric_revision for result in results},
        fields=fields_of(run.stated.card, run.facts),
        environment=environment_of(run.path),
    )


def _without_paths(run: Run, observed: ReportData, metrics: Collection[str] | None) -> ReportData:
    """Return an observation without paths of this machine, of the wanted metrics only."""
    inspection = replace(
        observed.inspection,
        run=name_of(run),
        unknown_files=[],
        files={name: kind for name, kind in observed.inspection.files.items() if not name.startswith("/")},
        metrics=[m for m in observed.inspection.metrics if metrics is None or m.metric in metrics],
    )
    results = [result for result in observed.results if metrics is None or result.metric in metrics]
    return replace(observed, inspection=inspection, results=results)


def anywhere(text: bytes, folder: Path, name: str) -> bytes:
    """Return JSON in which a folder is only its name, and files in it have no folder."""
    whole, short = (msgspec.json.encode(each)[1:-1] for each in (str(folder), name))
    if not whole.startswith(b"/") or len(whole) == 1:
        return text
    return text.replace(whole + b"/", b"").replace(whole, short)
