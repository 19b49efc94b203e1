"""Build the files of a bundle from a measured run; the same run gives the same files."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench import __version__, storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.text import encode_json, plain
from ccl_bench.card.comparison_fields import fields_of
from ccl_bench.collect.environment.machine import FILE_NAME
from ccl_bench.leaderboard.bundle.format import (
    CARD,
    PROVENANCE,
    REPORT,
    RESULTS,
    BundleProvenance,
    ProvenanceTrace,
    bundle_id,
)
from ccl_bench.result import to_json as results_json
from ccl_bench.result.report_data import to_json as report_json
from ccl_bench.run.completeness import RANK_MAP
from ccl_bench.run.documents import CARD as CARD_KIND
from ccl_bench.storage.files import read_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ccl_bench.result import Result
    from ccl_bench.result.report_data import ReportData
    from ccl_bench.run import Run


def environment_summary(folder: Path) -> dict[str, str]:
    """Return processor, system, driver and versions of libraries; no host, user, path or address."""
    try:
        environment = msgspec.json.decode(read_text(folder / FILE_NAME), type=dict[str, Any])
    except (InputError, msgspec.DecodeError):
        return {}
    host, software = _as_mapping(environment.get("host")), _as_mapping(environment.get("software"))
    public = [(name, host.get(name)) for name in ("system", "processor", "cores", "memory_bytes")]
    devices = environment.get("devices")
    if isinstance(devices, list) and devices:
        first = _as_mapping(devices[0])
        public += [("device", first.get("name")), ("driver", first.get("driver_version"))]
    torch = _as_mapping(software.get("torch"))
    public += [("python", software.get("python"))]
    public += [(name, torch.get(name)) for name in ("cuda", "hip", "nccl", "cudnn")]
    public += _as_mapping(software.get("libraries")).items()
    return {name: str(value)[:200] for name, value in public if value is not None}


def _as_mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def build_bundle(
    run: Run,
    observed: ReportData,
    folder: Path,
    *,
    metrics: Collection[str] | None = None,
    storage: str | None = None,
    trace_url: str | None = None,
) -> str:
    """Write the bundle of a run into an empty folder, and return its identifier.

    `metrics` are those that the leaderboard knows, all by default. `storage` is an address below which the
    traces get their own folder, `trace_url` is their address if they are already stored. Paths of this
    machine are left out, and so are the names of files that no number uses.
    """
    card = checked_card(run)
    (folder / CARD).write_bytes(card.read_bytes())
    inspection = replace(
        observed.inspection,
        run=run_name(run),
        unknown_files=[],
        files={name: kind for name, kind in observed.inspection.files.items() if not name.startswith("/")},
        metrics=[each for each in observed.inspection.metrics if metrics is None or each.metric in metrics],
    )
    results = [result for result in observed.results if metrics is None or result.metric in metrics]
    stripped = replace(observed, inspection=inspection, results=results)
    for name, text in ((RESULTS, results_json(stripped.results)), (REPORT, report_json(stripped))):
        of_run = strip_folder(text, run.path, run_name(run))
        (folder / name).write_bytes(strip_folder(of_run, card, CARD))
    provenance = _provenance(run, results)
    if storage:
        trace_url = f"{storage.rstrip('/')}/{recording_hash(provenance, run_name(run))[:16]}"
    provenance = msgspec.structs.replace(provenance, trace_url=trace_url)
    ordered = msgspec.to_builtins(provenance, order="deterministic")
    (folder / PROVENANCE).write_bytes(encode_json(ordered) + b"\n")
    return bundle_id(folder)


def checked_card(run: Run) -> Path:
    """Return the card; InputError if there is none, or if other machines cannot display a file's name."""
    card = run.documents.origins.get("card")
    if card is None:
        fix = f"make it with ccl-bench card {run.path}"
        raise InputError("has no workload card, so its workload is unknown", where=str(run.path), fix=fix)
    for name, path in ({run_name(run): run.path} | input_files(run)).items():
        if name != plain(name):
            problem = "has a name that other machines cannot display, so it cannot be published"
            raise InputError(problem, where=str(path), fix="rename it; letters of any script are allowed")
    return card


def recording_hash(provenance: BundleProvenance, otherwise: str) -> str:
    """Return the hash of the recording: equal for bundles that describe the same recording differently.

    It covers the traces; without traces the other files, and without both it is that of `otherwise`.
    """
    digests = (
        sorted(trace.sha256 for trace in provenance.traces)
        or sorted(provenance.files.values())
        or [otherwise]
    )
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def run_name(run: Run) -> str:
    """Return the name of a run: that of its directory, or of its only file."""
    return run.path.name or "run"


def input_files(run: Run) -> dict[str, Path]:
    """Return every file that the numbers of a run use, by its name below the run, without the card."""
    folder = run.path if run.path.is_dir() else run.path.parent
    stated_files = [path for path, kind in run.documents.files.items() if kind != CARD_KIND]
    ranks = folder / RANK_MAP
    within = [path for path in (*stated_files, ranks) if path.is_relative_to(folder) and path.is_file()]
    trace_files = {trace.relative.removesuffix(f"#{trace.part}"): trace.path for trace in run.traces}
    return trace_files | {path.relative_to(folder).as_posix(): path for path in within}


def _provenance(run: Run, results: list[Result]) -> BundleProvenance:
    files = input_files(run)
    known_digests = {trace.file: trace.sha256 for result in results for trace in result.provenance.traces}
    traces: dict[str, ProvenanceTrace] = {}
    for trace in run.traces:
        name = trace.relative.removesuffix(f"#{trace.part}")
        digest = known_digests.get(trace.relative) or storage.content_sha256(trace.path)
        rank = None if name in traces else trace.rank  # a file of several ranks is of none
        traces[name] = ProvenanceTrace(name, digest, trace.size, trace.form.name, rank)
    return BundleProvenance(
        run=run_name(run),
        tool_version=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        traces=[traces[name] for name in sorted(traces)],
        files={name: storage.sha256(files[name]) for name in sorted(files.keys() - traces.keys())},
        metric_revisions={result.metric: result.provenance.metric_revision for result in results},
        fields=fields_of(run.documents.card, run.facts),
        environment=environment_summary(run.path),
    )


def strip_folder(text: bytes, folder: Path, name: str) -> bytes:
    """Return JSON in which a folder is reduced to its name, and files have no folder."""
    whole, short = (encode_json(each)[1:-1] for each in (str(folder), name))
    if not whole.startswith(b"/") or len(whole) == 1:
        return text
    return text.replace(whole + b"/", b"").replace(whole, short)
