"""The upload of a run: all data that leaves this machine, and a preview of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.text import counted
from ccl_bench.card.comparison_fields import unranked_reason
from ccl_bench.evaluate.report_data import collect_report_data
from ccl_bench.leaderboard.bundle.build import build_bundle, checked_card, input_files
from ccl_bench.leaderboard.bundle.format import CARD, ORIGIN, PROVENANCE, REPORT, RESULTS, RUN_FOLDER, Limits
from ccl_bench.leaderboard.bundle.redaction import find_disclosures, links_outside, refuse_secrets, stage_run
from ccl_bench.leaderboard.bundle.validate import validate_bundle
from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rich.console import RenderableType

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.leaderboard.bundle.redaction import Disclosure


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """Options of publishing a run."""

    place: str
    card: str | None = None
    with_traces: bool = False
    storage: str | None = None
    """Address in object storage below which the traces go."""
    trace_url: str | None = None
    """Address where the traces are already stored."""
    metrics: Collection[str] | None = None
    """Metrics that the leaderboard knows; all by default."""
    jobs: int | None = None
    use_cache: bool = True
    choice: StepChoice = EVERY_STEP


@dataclass(frozen=True, slots=True)
class Upload:
    """The data that leaves the machine."""

    id: str
    bundle: Bundle
    run_files: dict[str, Path] = field(default_factory=dict)
    """Files of the run, by their names below it; empty if traces are not published."""
    redacted: list[str] = field(default_factory=list)
    """Reports that are published in part."""
    disclosures: list[Disclosure] = field(default_factory=list)
    """Personal data and names of machines in its files."""
    sent: dict[str, Path] = field(default_factory=dict)
    """Files of the run to send; empty if they go to object storage."""


def prepare_upload(request: UploadRequest, folder: Path, *, progress: Progress | None = None) -> Upload:
    """Measure a run and write the files to publish into an empty folder.

    Raises InputError if the bundle is invalid, holds a secret, or a file of the run links outside it: before
    it measures where that can be seen.
    """
    reopened = partial(open_run, card=request.card and _absolute(request.card), choice=request.choice)
    run = reopened(_absolute(request.place))
    hands_out = request.with_traces or request.storage is not None
    if outside := links_outside(run, input_files(run) if hands_out else {}):
        more = f", as do {len(outside) - 1} more" if len(outside) > 1 else ""
        fix = "copy the file into the run, or publish without the traces"
        raise InputError(f"links outside the run{more}; nothing was published", where=outside[0], fix=fix)
    checked_card(run)
    redacted: list[str] = []
    if hands_out:
        (folder / "staged").mkdir()
        run, redacted = stage_run(run, folder / "staged", reopened)
    run_files = input_files(run) if hands_out else {}
    disclosures = find_disclosures({f"{RUN_FOLDER}/{name}": path for name, path in run_files.items()})
    refuse_secrets(disclosures)
    seen = collect_report_data(run, jobs=request.jobs, use_cache=request.use_cache, progress=progress)
    built = folder / "bundle"
    built.mkdir()
    run_id = build_bundle(
        run, seen, built, metrics=request.metrics, storage=request.storage, trace_url=request.trace_url
    )
    bundle = validate_bundle(built, Limits())
    disclosures = find_disclosures({name: built / name for name in bundle.files}) + disclosures
    refuse_secrets(disclosures)
    return Upload(run_id, bundle, run_files, redacted, disclosures, run_files if request.with_traces else {})


def _absolute(place: str) -> str:
    """Return an address, or the absolute path of a file or folder, to search the bundle for."""
    return place if "://" in place else str(Path(place).expanduser().absolute())


_FILE_DESCRIPTIONS = {
    CARD: "the card as written",
    ORIGIN: "your name, the time, and your signature of the files above",
    PROVENANCE: "versions, environment, and the SHA-256 of every file of the run",
    REPORT: "the report as data",
    RESULTS: "every number with its details",
}


def preview(upload: Upload) -> Group:
    """Return the files of an upload, and the personal data and names of machines in them."""
    bundle = upload.bundle
    formats = {trace.file: trace.format for trace in bundle.provenance.traces}
    files = [(name, bundle.folder / name, _FILE_DESCRIPTIONS[name]) for name in bundle.public_files]
    files += [
        (f"{RUN_FOLDER}/{name}", path, formats.get(name, "beside the traces"))
        for name, path in sorted(upload.run_files.items())
    ]
    rows = [(name, f"{path.stat().st_size:,}", what) for name, path, what in files]
    parts: list[RenderableType] = [
        heading(f"{bundle.provenance.run} would be published as {upload.id[:12]}"),
        indented(aligned(("file", "bytes", "what"), rows, right=(1,))),
    ]
    if upload.disclosures:
        disclosed = [(d.file, f"{d.what}, {counted(d.count, 'time')}", d.example) for d in upload.disclosures]
        parts += [heading("What it discloses"), indented(aligned(("file", "what", "example"), disclosed))]
    else:
        parts.append(Text("No host name, user name, address or home directory was detected in it."))
    if reason := unranked_reason(bundle.fields):
        parts.append(Text(f"It would be listed but not ranked: {reason}."))
    else:
        parts.append(Text("The card has every field that ranking needs."))
    return Group(*parts)


def disclosure_summaries(upload: Upload) -> Iterator[str]:
    """Yield a sentence for each kind of personal data in an upload."""
    for what in dict.fromkeys(disclosure.what for disclosure in upload.disclosures):
        same = [disclosure for disclosure in upload.disclosures if disclosure.what == what]
        yield f"{what} found in {counted(len(same), 'file')}: {same[0].example} in {same[0].file}"
