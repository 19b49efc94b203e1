"""Everything that leaves the machine when a run is published, put together and looked through."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.report_data import collect_report_data
from ccl_bench.leaderboard.bundle.checking import refuse_mistakes
from ccl_bench.leaderboard.bundle.limits import RUN, Limits
from ccl_bench.leaderboard.bundle.making import files_of, made
from ccl_bench.leaderboard.bundle.private import refuse_secrets, told_by
from ccl_bench.leaderboard.bundle.staging import links_out, staged
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.bundle.private import Told
    from ccl_bench.leaderboard.store.bundle import Bundle


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be published of a run, and how it is read."""

    place: str
    card: str | None = None
    with_traces: bool = False
    storage: str | None = None
    """Address in object storage below which the traces go."""
    trace_url: str | None = None
    """Where the traces are already."""
    metrics: Collection[str] | None = None
    """Those that the other side knows; all unless given."""
    jobs: int | None = None
    use_cache: bool = True
    choice: StepChoice = EVERY_STEP


@dataclass(frozen=True, slots=True)
class Parcel:
    """What leaves the machine."""

    id: str
    bundle: Bundle
    run_files: dict[str, Path] = field(default_factory=dict)
    """Files of the run, by their names below it; empty where traces stay."""
    scrubbed: list[str] = field(default_factory=list)
    """Reports of which only a part leaves."""
    told: list[Told] = field(default_factory=list)
    """What it tells of people and machines."""
    sent: dict[str, Path] = field(default_factory=dict)
    """Those files of the run that go along; empty where they go to storage of their own."""


def packed(wanted: Wanted, folder: Path, *, progress: Progress | None = None) -> Parcel:
    """Measure a run and write what is published of it into an empty folder.

    Raises InputError where the bundle would be refused, holds a secret, or takes files from outside the run.
    """
    reopened = partial(open_run, card=wanted.card and _whole(wanted.card), choice=wanted.choice)
    run = reopened(_whole(wanted.place))
    hands_out = wanted.with_traces or wanted.storage is not None
    _refuse_links(links_out(run, files_of(run) if hands_out else {}))
    scrubbed: list[str] = []
    if hands_out:
        (folder / "staged").mkdir()
        ready = staged(run, folder / "staged", reopened)
        run, scrubbed = ready.run, ready.scrubbed
    seen = collect_report_data(run, jobs=wanted.jobs, use_cache=wanted.use_cache, progress=progress)
    (folder / "bundle").mkdir()
    done = made(
        run,
        seen,
        folder / "bundle",
        metrics=wanted.metrics,
        storage=wanted.storage,
        trace_url=wanted.trace_url,
    )
    run_files = files_of(run) if hands_out else {}
    bundle = refuse_mistakes(done.folder, Limits())
    leaving = {name: done.folder / name for name in bundle.files}
    told = told_by(leaving | {f"{RUN}/{name}": path for name, path in run_files.items()})
    refuse_secrets(told)
    return Parcel(done.id, bundle, run_files, scrubbed, told, run_files if wanted.with_traces else {})


def _whole(place: str) -> str:
    """Return an address, or the whole path of a file or folder, by which it is found in what is told."""
    return place if "://" in place else str(Path(place).expanduser().absolute())


def _refuse_links(outside: list[str]) -> None:
    """Raise InputError where a file is a link out of the run: what is published follows none."""
    if not outside:
        return
    more = f", and so do {len(outside) - 1} more" if len(outside) > 1 else ""
    fix = "copy the file into the run, or publish without the traces"
    raise InputError(f"leads out of the run{more}; nothing was published", where=outside[0], fix=fix)
