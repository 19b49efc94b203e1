"""The review of a merge request to a board: each new or changed bundle checked, recomputed and ranked."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from ccl_bench import __version__
from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.base.text import counted
from ccl_bench.card.comparison_fields import unranked_reason
from ccl_bench.leaderboard.bundle.build import recording_hash
from ccl_bench.leaderboard.bundle.format import (
    HISTORY,
    ID,
    LISTED,
    ORIGIN,
    Bundle,
    HistoryEvent,
    Limits,
    State,
    open_bundle,
)
from ccl_bench.leaderboard.bundle.origin import read_origin, read_public_key
from ccl_bench.leaderboard.bundle.validate import validate_bundle
from ccl_bench.leaderboard.federation.changes import KEYS
from ccl_bench.leaderboard.publishing.recompute import differences, fetch_run, recompute_run
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.store import open_store
from ccl_bench.leaderboard.store.query_result import runs_of_workload
from ccl_bench.leaderboard.store.rows import is_listed, workload_key
from ccl_bench.leaderboard.store.store import FOLDER
from ccl_bench.leaderboard.store.tables import RUNS
from ccl_bench.storage import private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.bundle.origin import PublicKey
    from ccl_bench.leaderboard.federation.changes import BoardChanges
    from ccl_bench.leaderboard.store import Store
    from ccl_bench.leaderboard.store.query_result import ListedRun, RunNumber

_RESTORE = (
    "restore it: git checkout REVISION -- runs; to take a row off the board, use ccl-bench board withdraw"
)
_AGAIN = "publish the run again: ccl-bench publish RUN --to BOARD"


@dataclass(slots=True)
class RowReview:
    """What a merge request does to one run, and what is wrong with it."""

    name: str
    """Name of its folder below `runs/`."""
    is_new: bool = False
    is_removed: bool = False
    run: str = ""
    """Name of the run, once its bundle could be read."""
    submitter: str = ""
    """Who published it, as its history or its card states."""
    problems: list[CclBenchError] = field(default_factory=list)
    """Why it is refused; empty if it is not."""
    listed: ListedRun | None = None
    """Its row on the board with the merge request."""
    events: list[HistoryEvent] = field(default_factory=list)
    """Changes of its state that the merge request adds."""
    remarks: list[str] = field(default_factory=list)
    signed_by: str = ""
    """Who signed it; empty if it is unsigned."""
    recomputed: str = ""
    """Outcome of recomputing its numbers, if they agree; or why they were not recomputed."""
    mismatches: list[str] = field(default_factory=list)
    """Differences between its numbers and the recomputed ones."""


@dataclass(frozen=True, slots=True)
class RankChange:
    """One number of a row whose rank the merge request changes."""

    metric: str
    run: str
    name: str
    before: RunNumber
    after: RunNumber


@dataclass(slots=True)
class BoardReview:
    """The review of a merge request."""

    rows: list[RowReview] = field(default_factory=list)
    """Of each run that it changes."""
    moved: list[RankChange] = field(default_factory=list)
    """Rows that were there before, and have another rank."""
    best_before: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    """Workload and metric → the best ranked number before, and its run."""
    listed: int = 0
    """Listed runs of the board with the merge request."""

    @property
    def is_refused(self) -> bool:
        """Whether a bundle is refused."""
        return any(row.problems for row in self.rows)

    @property
    def differs(self) -> bool:
        """Whether a recomputed number differs."""
        return any(row.mismatches for row in self.rows)


def review_board(
    changes: BoardChanges, *, traces: Path | None = None, progress: Progress | None = None
) -> BoardReview:
    """Return the review of the changes of a board.

    `traces` is a folder with the files of runs, directly or below a folder with the name or identifier of
    the run: the numbers of new runs that it has are recomputed. Nothing is downloaded. `progress` is called
    with the number of reviewed runs and their total.
    """
    keys = _keys(changes.earlier / KEYS)
    claims = _claims(changes) if changes.changed else {}
    review = BoardReview()
    for done, name in enumerate(changes.changed, start=1):
        row = RowReview(name, is_new=changes.before(name) is None, is_removed=changes.after(name) is None)
        try:
            row.problems += _problems(row, changes, keys, claims, traces)
        except CclBenchError as error:
            row.problems.append(error)
        except OSError:
            raise
        except Exception as error:  # a stranger wrote the files: they must not cost others their review
            wrong = f"cannot be reviewed: {type(error).__name__}: {str(error)[:200]}"
            row.problems.append(InputError(wrong, where=name, fix=_AGAIN))
        for problem in row.problems:
            where = problem.where.removeprefix(f"{changes.board}/")
            problem.where = where if where.startswith(FOLDER) else f"{FOLDER}/{name}"
        review.rows.append(row)
        if progress:
            progress(done, len(changes.changed))
    _rank(review, changes)
    return review


def _keys(folder: Path) -> dict[str, PublicKey]:
    """Return the public keys of a board by the names of their submitters.

    They are those of the earlier state: a merge request cannot bring the key that it is checked with.
    """
    return {path.stem: read_public_key(path) for path in sorted(folder.glob("*.pub")) if path.is_file()}


def _claims(changes: BoardChanges) -> dict[str, list[tuple[str, str]]]:
    """Return the run and submitter of each recording on the board that nobody else may publish."""
    claims: dict[str, list[tuple[str, str]]] = {}
    for name in (*changes.unchanged, *changes.changed):
        folder = changes.before(name)
        if folder is None or not ID.fullmatch(name) or folder.is_symlink():
            continue
        bundle = Bundle(folder)
        try:
            last, submitter = bundle.history[-1], _submitter(bundle)
            if last.state in LISTED or (last.state is State.WITHDRAWN and last.by == submitter):
                recording = recording_hash(bundle.provenance, name)
                claims.setdefault(recording, []).append((name, submitter))
        except CclBenchError:
            continue  # it was damaged before, and is not on the board
    return claims


def _problems(
    row: RowReview,
    changes: BoardChanges,
    keys: dict[str, PublicKey],
    claims: dict[str, list[tuple[str, str]]],
    traces: Path | None,
) -> Iterator[CclBenchError]:
    """Yield what is wrong with a run, and add to its row what is worth reporting."""
    where = f"{FOLDER}/{row.name}"
    if not ID.fullmatch(row.name):
        if not row.is_removed:
            yield InputError("is not a bundle", where=where, fix=f"remove it, or {_AGAIN}")
        return
    before, after = changes.before(row.name), changes.after(row.name)
    earlier = Bundle(before).history if before else []
    if after is None:
        if not earlier or earlier[-1].state is not State.WITHDRAWN:
            yield InputError("was published and is removed", where=where, fix=_RESTORE)
        return
    if after.is_symlink() or not after.is_dir():
        yield InputError("is not a folder", where=where, fix=_RESTORE if before else _AGAIN)
        return
    bundle = open_bundle(after)
    # What was published has the same bytes, and stays even if today's rules would refuse it.
    if row.is_new:
        bundle = validate_bundle(after, Limits())
    for file in (HISTORY, ORIGIN):
        if (after / file).exists() and (after / file).stat().st_size > Limits().of(file):
            yield InputError("is larger than any of its kind", where=f"{where}/{file}", fix=_AGAIN)
            return
    row.run, row.submitter = bundle.provenance.run, _submitter(bundle)
    yield from _origin_problems(row, bundle, keys)
    row.events = bundle.history[len(earlier) :]
    if bundle.history[: len(earlier)] != earlier:
        wrong = "its history was rewritten: entries may only be added at its end"
        yield InputError(wrong, where=f"{where}/{HISTORY}", fix=_RESTORE)
        return
    for event in row.events:
        target = event.superseded_by
        if target is not None and (target == row.name or changes.after(target) is None):
            wrong = f"is superseded by {target[:12]}, which is not on the board"
            yield InputError(wrong, where=f"{where}/{HISTORY}", fix=_AGAIN)
    if row.is_new:
        yield from _claim_problems(row, bundle, changes, claims)
        if reason := unranked_reason(bundle.fields):
            row.remarks.append(f"it is listed but not ranked: {reason}")
        _recompute(row, bundle, traces)
    is_verified = any(event.state is State.VERIFIED for event in row.events)
    if is_verified and not (row.recomputed.startswith(_AGREES) and not row.mismatches):
        wrong = "its history states that a server verified it, which a merge request cannot show"
        fix = f"{_AGAIN}; a maintainer recomputes it with ccl-bench board review --traces"
        yield InputError(wrong, where=f"{where}/{HISTORY}", fix=fix)


def _submitter(bundle: Bundle) -> str:
    return bundle.history[0].by or bundle.card.value.contributor or ""


def _origin_problems(row: RowReview, bundle: Bundle, keys: dict[str, PublicKey]) -> Iterator[CclBenchError]:
    """Yield what is wrong with the signature of a bundle."""
    origin = read_origin(bundle.folder)
    where = f"{FOLDER}/{row.name}/{ORIGIN}"
    if origin is None:
        if bundle.signed_by:
            yield InputError("is missing, but its history states that it was signed", where=where, fix=_AGAIN)
        return
    key = keys.get(origin.publisher)
    if key is None:
        fix = f"merge {KEYS}/{origin.publisher}.pub first, in a merge request of its own"
        yield InputError(f"is signed by {origin.publisher}, whose key the board lacks", where=where, fix=fix)
        return
    origin.verify(bundle.folder, key)
    if origin.publisher != row.submitter:
        wrong = f"is signed by {origin.publisher}, but its submitter is {row.submitter or 'not stated'}"
        yield InputError(wrong, where=where, fix=_AGAIN)
    if any(event.key not in {"", key.id} for event in bundle.history):
        wrong = f"is signed with the key {key.id}, but its history states another one"
        yield InputError(wrong, where=where, fix=_AGAIN)
    row.signed_by = origin.publisher


def _claim_problems(
    row: RowReview, bundle: Bundle, changes: BoardChanges, claims: dict[str, list[tuple[str, str]]]
) -> Iterator[CclBenchError]:
    """Yield rows of the same recording that stay on the board beside a new one."""
    where = f"{FOLDER}/{row.name}"
    for run, owner in claims.get(recording_hash(bundle.provenance, row.name), []):
        if owner != row.submitter:
            wrong = f"the same traces were published by {owner or 'another submitter'} as {run[:12]}"
            yield InputError(wrong, where=where, fix="ask a maintainer if they are yours")
            continue
        folder = changes.after(run)
        if folder is not None and Bundle(folder).history[-1].state in LISTED:
            fix = f"publish into a checkout of the board, which supersedes {run[:12]}, and commit both"
            yield InputError(f"replaces {run[:12]}, which is still listed", where=where, fix=fix)


_AGREES = "agree"


def _recompute(row: RowReview, bundle: Bundle, traces: Path | None) -> None:
    """Recompute the numbers of a new run, if its files are at hand."""
    provenance = bundle.provenance
    address = provenance.trace_url or bundle.card.value.trace_url
    if traces is None:
        row.recomputed = f"not recomputed; its traces are at {address}" if address else "not recomputed"
        return
    names = [*(trace.file for trace in provenance.traces), *provenance.files]
    folders = (traces / bundle.id, traces / provenance.run, traces)
    place = next((each for each in folders if names and all((each / name).is_file() for name in names)), None)
    if place is None:
        row.recomputed = f"not recomputed: its files are not in {traces.name}"
        return
    with tempfile.TemporaryDirectory(prefix="ccl-bench-") as temporary:
        run, scratch = Path(temporary, "run"), private_folder(Path(temporary, "scratch"))
        try:
            fetch_run(provenance, str(place), run, Settings(), lambda: True)
        except InputError as error:
            name = error.where.removeprefix(f"{place}/")
            row.mismatches.append(f"the file {name} in {traces.name} {error.message}")
            return
        answer = recompute_run(bundle, run, scratch, Settings(), lambda: True)
    if answer.error:
        row.recomputed = f"not recomputed: {answer.error}"
        return
    row.mismatches = differences(bundle, answer)
    values = sum(result.value is not None for result in bundle.results)
    row.recomputed = f"{_AGREES}: {counted(values, 'number')} recomputed with ccl-bench {__version__}"


_EVERY = 1 << 30
"""More runs than a workload has."""


def _rank(review: BoardReview, changes: BoardChanges) -> None:
    """Add the rows of accepted runs with their ranks, and the rows whose ranks they change."""
    folders = {name: changes.before(name) for name in (*changes.unchanged, *changes.changed)}
    places = {name: folder for name, folder in folders.items() if folder and ID.fullmatch(name)}
    accepted = {row.name: row for row in review.rows if not row.problems}
    after = {name: changes.after(name) for name in accepted}
    affected = {
        workload_key(Bundle(folder).fields)
        for folder in (*after.values(), *(places.get(name) for name in accepted))
        if folder
    }
    with tempfile.TemporaryDirectory(prefix="ccl-bench-") as temporary:
        runs = private_folder(Path(temporary, FOLDER))
        for name, folder in places.items():
            (runs / name).symlink_to(folder)
        store = open_store(temporary)
        store.catch_up()
        earlier = _rows(store, affected)
        for name, place in after.items():
            (runs / name).unlink(missing_ok=True)
            if place:
                (runs / name).symlink_to(place)
        store.index(after)
        later = _rows(store, affected)
        review.listed = _listed(store)
        store.engine.dispose()
    for name, row in accepted.items():
        row.listed = later.get(name)
    for run, listed in earlier.items():
        for metric, number in listed.numbers.items():
            if number.place == 1:
                review.best_before[listed.run["workload"], metric] = number.value, run
            now = later[run].numbers.get(metric) if run in later else None
            if now and now.place and number.place and now.place != number.place:
                review.moved.append(RankChange(metric, run, listed.run["name"], number, now))
    review.moved.sort(key=lambda each: (each.metric, each.after.place or 0, each.run))


def _rows(store: Store, workloads: set[str]) -> dict[str, ListedRun]:
    """Return the listed runs of some workloads by their identifiers."""
    with store.engine.connect() as connection:
        runs = [run for key in sorted(workloads) for run in runs_of_workload(connection, key, _EVERY)]
    return {each.run["id"]: each for each in runs}


def _listed(store: Store) -> int:
    with store.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(RUNS).where(is_listed())).scalar_one()
