"""The results store: bundles on disk, the authoritative data, and an up-to-date index of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs
from sqlalchemy import delete, func, insert, select, update

from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import encode_json
from ccl_bench.leaderboard.bundle.format import (
    HISTORY,
    ID,
    ORIGIN,
    Bundle,
    HistoryEvent,
    bundle_id,
    history_stamp,
    open_bundle,
    read_history,
    write_history,
)
from ccl_bench.leaderboard.reported.observations import (
    MOST_ROWS,
    Reported,
    check_source,
    read_reported,
    write_reported,
)
from ccl_bench.leaderboard.store.database import locked, writing
from ccl_bench.leaderboard.store.log import log_changes
from ccl_bench.leaderboard.store.reported_rows import reported_rows
from ccl_bench.leaderboard.store.rows import (
    Row,
    change_counts,
    interactivity_of,
    run_row,
    update_workloads,
    value_rows,
    workload_row,
)
from ccl_bench.leaderboard.store.tables import RUNS, SOURCES, VALUES, WORKLOADS
from ccl_bench.storage import open_private, private_folder, sync, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
    from pathlib import Path

    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.sql.elements import ColumnElement

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.reported.observations import Source

_Any = TypeVar("_Any")
_Rows = tuple[list[Row], list[Row]]
"""Rows of runs, and rows of their numbers."""
FOLDER = "runs"
"""Folder of the bundles below the data directory."""
REPORTED = "reported"
"""Folder of the rows that were reported elsewhere, one file a source."""
_AT_ONCE = 100
"""Number of bundles that are written to the database together: more would let other writers wait longer."""
CHANGES = ".changes"
"""File that grows by a byte with each change of the index, so that every process notices."""


@dataclass(frozen=True, slots=True)
class _ReadRun:
    """The rows of a run, and its history."""

    workload: Row
    run: Row
    values: list[Row]
    history: list[HistoryEvent]


@dataclass(slots=True)
class Store:
    """Published runs below a data directory."""

    data: Path
    engine: Engine
    refused: dict[str, CclBenchError] = field(default_factory=dict)
    """Folder → why it could not be indexed; `index` and `rebuild` try again."""
    _looked_at: int = 0

    @property
    def folder(self) -> Path:
        """Folder of the bundles."""
        return self.data / FOLDER

    def bundle(self, run: str) -> Bundle:
        """Return the bundle of a run, given by its full identifier."""
        if not ID.fullmatch(run) or not (self.folder / run).is_dir():
            raise InputError(f"there is no run {run}", where=str(self.data), fix="check the identifier")
        return Bundle(self.folder / run)

    def add(self, prepared: Path, event: HistoryEvent) -> tuple[str, bool]:
        """Add a bundle, and return its identifier and whether it is new.

        `prepared` is a folder on the same file system, whose content is on the disk; it becomes the run's in
        one step. If the bundle exists already, it stays as it is and the folder is removed.
        """
        run = bundle_id(prepared)
        target = self.folder / run
        with locked(self.data):
            is_new = not target.exists()
            if is_new:
                write_history(prepared, [event])
                private_folder(self.folder)
                was_seen = self._changed_at() == self._looked_at
                prepared.rename(target)
                sync(self.folder)
                self._looked_at = self._changed_at() if was_seen else 0
        if not is_new:
            shutil.rmtree(prepared)
        self.index([run])
        return run, is_new

    def record(self, run: str, event: HistoryEvent) -> None:
        """Add an event to the history of a run, and rank its numbers anew."""
        folder = self.bundle(run).folder
        with locked(self.data):
            write_history(folder, [*read_history(folder), event])
        self.index([run])

    def sign(self, run: str, signature: str, event: HistoryEvent) -> None:
        """Give a run a verified signature of its origin, in place of any other."""
        folder = self.bundle(run).folder
        with locked(self.data):
            with write_atomically(folder / ORIGIN, durable=True) as temporary:
                temporary.write_text(signature, encoding="utf-8")
            write_history(folder, [*read_history(folder), event])
        self.index([run])

    def index(self, runs: Iterable[str], *, progress: Progress | None = None) -> None:
        """Write runs from disk into the index; `refused` lists those that failed, and why.

        New events of their histories go into the log in the same transaction. `progress` is called with the
        number of runs that were read and their total.
        """
        waiting = list(runs)
        for start in range(0, len(waiting), _AT_ONCE):
            names = waiting[start : start + _AT_ONCE]
            with self._looking_again_after_failure(), locked(self.data):
                read_runs = {}
                for done, name in enumerate(names, start=start + 1):
                    if read := self._read(name):
                        read_runs[name] = read
                    if progress:
                        progress(done, len(waiting))
                self._replace(names, read_runs)

    def leave_out(self, unusable: Mapping[str, CclBenchError]) -> None:
        """Take runs that cannot be shown out of the index, until a process reads their files again."""
        with locked(self.data):
            self.refused |= unusable
            self._replace([*unusable], {})

    def _replace(self, names: Sequence[str], read_runs: Mapping[str, _ReadRun]) -> None:
        """Replace the rows of some runs, with the log of their changes."""
        with writing(self.engine) as connection:
            removed = _forget(connection, names)
            added = _write(connection, list(read_runs.values()))
            change_counts(connection, added=added, removed=removed)
            update_workloads(connection, {run["workload"] for run in (*added[0], *removed[0])})
            seen = [name for name in names if name not in self.refused]
            log_changes(
                connection,
                {name: read_runs[name].history if name in read_runs else None for name in seen},
            )
        self._note_change()

    def rebuild(self, *, progress: Progress | None = None) -> None:
        """Rebuild the whole index from the files; readers see the old one or the new one."""
        with self.engine.connect() as connection:
            indexed = set(connection.execute(select(RUNS.c.id).where(RUNS.c.source.is_(None))).scalars())
        self.index(sorted(indexed | self.folders()), progress=progress)
        with writing(self.engine) as connection:
            connection.execute(update(SOURCES).values(stamp=""))
        self._catch_up_reported()

    def catch_up(self, *, progress: Progress | None = None) -> None:
        """Update the index after additions, changes and removals in the folder."""
        if not self._looked_at:
            self._note_change()  # a killed process may have changed the index without
        self._looked_at = self._changed_at()
        place = str(self.folder)
        on_disk = {(name, history_stamp(f"{place}/{name}")) for name in self.folders()}
        with self._looking_again_after_failure(), self.engine.connect() as connection:
            of_bundles = select(RUNS.c.id, RUNS.c.history_stamp).where(RUNS.c.source.is_(None))
            indexed = {*map(tuple, connection.execute(of_bundles).all())}
        self.index(sorted({name for name, _ in on_disk ^ indexed} - self.refused.keys()), progress=progress)
        self._catch_up_reported()

    def catch_up_if_changed(self) -> None:
        """Update the index if the folder changed since the last call."""
        if self._changed_at() != self._looked_at:
            self.catch_up()

    @contextlib.contextmanager
    def _looking_again_after_failure(self) -> Iterator[None]:
        """Have the next `catch_up_if_changed` find what the database did not take, whoever wrote it."""
        try:
            yield
        except BaseException:
            self._looked_at = 0
            raise

    def _note_change(self) -> None:
        with open_private(self.data / CHANGES, "ab") as stream:
            stream.write(b".")

    def add_reported(self, reported: Reported) -> int:
        """Add observations of a source, each once, and return how many are new.

        The source is described as the last import does.
        """
        path = self.data / REPORTED / f"{reported.source.name}.parquet"
        check_source(reported.source, "the source")
        source, rows = reported.source, reported.rows.unique(maintain_order=True)
        earlier, before = None, 0
        with locked(self.data):
            private_folder(path.parent)
            if path.exists():
                earlier = read_reported(path)
                before = earlier.rows.height
                source = _joined(earlier.source, source)
                rows = pl.concat([earlier.rows, rows], how="diagonal").unique(maintain_order=True)
            if rows.height > MOST_ROWS:
                problem = f"{source.name} would have more than {MOST_ROWS:,} rows"
                raise InputError(problem, where=str(path), fix="import a part of them")
            if rows.height > before or (earlier is not None and source != earlier.source):
                write_reported(path, Reported(source, rows))
        self.catch_up()
        return rows.height - before

    def _catch_up_reported(self) -> None:
        """Replace the rows of every source whose file is new, has changed or is gone.

        One whose file cannot be used is read again by every process, so that each of them names it.
        """
        files = {path.stem: path for path in (self.data / REPORTED).glob("*.parquet")}
        stamps = {name: f"{path.stat().st_size}-{path.stat().st_mtime_ns}" for name, path in files.items()}
        with self.engine.connect() as connection:
            indexed = dict(map(tuple, connection.execute(select(SOURCES.c.name, SOURCES.c.stamp)).all()))
        for name in sorted(
            name for name in stamps.keys() | indexed.keys() if stamps.get(name) != indexed.get(name)
        ):
            self.refused.pop(name, None)
            with locked(self.data):
                reported = self._read_source(files[name], name) if name in files else None
                if reported is None and name not in indexed:
                    continue
                with writing(self.engine) as connection:
                    replace_reported(connection, name, reported, stamps.get(name, ""))
            self._note_change()

    def _read_source(self, path: Path, name: str) -> Reported | None:
        """Return the observations of a source; None if they are refused."""
        try:
            reported = read_reported(path)
            if reported.source.name != name:
                fix = f"name it {reported.source.name}.parquet"
                raise InputError(f"holds rows of {reported.source.name}", where=str(path), fix=fix)
        except InputError as error:
            self.refused[name] = error
            return None
        return reported

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes with the index and with its folder."""
        changes = self.data / CHANGES
        return self._changed_at(), changes.stat().st_size if changes.exists() else 0

    @property
    def count(self) -> int:
        """Runs in the index, in any state."""
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(RUNS)).scalar_one()

    def folders(self) -> set[str]:
        """Return the names of the folders of bundles, whether they are on the board or not."""
        if not self.folder.is_dir():
            return set()
        return {name for name in os.listdir(self.folder) if ID.fullmatch(name)}  # noqa: PTH208  as history_stamp

    def _changed_at(self) -> int:
        folders = (self.folder, self.data / REPORTED)
        return sum(folder.stat().st_mtime_ns for folder in folders if folder.is_dir())

    def _read(self, run: str) -> _ReadRun | None:
        """Return the rows of a run; None if it is missing or refused. Nobody else may be writing."""
        self.refused.pop(run, None)
        if not (self.folder / run).exists():
            return None
        # A process that was killed leaves what it was about to put into the place of such a file.
        for left in (path for name in (HISTORY, ORIGIN) for path in (self.folder / run).glob(f".{name}.*")):
            left.unlink(missing_ok=True)
        try:
            bundle = open_bundle(self.folder / run)
            row = run_row(bundle)
            values = list(value_rows(bundle, row))
            row["interactivity"] = interactivity_of(values)
            return _ReadRun(workload_row(bundle.fields), row, values, bundle.history)
        except CclBenchError as error:
            self.refused[run] = error
        except OSError:
            raise
        except Exception as error:  # a stranger wrote the files: they must not cost others the table
            where, fix = str(self.folder / run), "remove the folder, and publish the run again"
            self.refused[run] = InputError(f"cannot be listed: {error}", where=where, fix=fix)
        return None


def _joined(earlier: Source, later: Source) -> Source:
    """Return a source as it is described last, with the numbers of both."""
    for name, number in later.numbers.items():
        if (before := earlier.numbers.get(name, number)) != number and before.unit != number.unit:
            raise InputError(
                f"{later.name} reported {name} in {before.unit} before, not in {number.unit}",
                where=later.name,
                fix="give these rows another --source",
            )
    return structs.replace(later, numbers=earlier.numbers | later.numbers)


def replace_reported(connection: Connection, name: str, reported: Reported | None, stamp: str) -> None:
    """Replace the rows of a source; without observations, remove them. `stamp` is that of the file.

    Rows that stay as they are, and numbers of other rows, are not written again.
    """
    gone = set(connection.execute(select(RUNS.c.id).where(RUNS.c.source == name)).scalars())
    workloads: set[str] = set()
    count = 0
    for part in _in_parts(reported_rows(reported) if reported else ()):
        ids = [run["id"] for _, run, _ in part]
        gone.difference_update(ids)
        count += len(part)
        before, numbers_before = _indexed(connection, ids)
        is_same = {run["id"]: before.get(run["id"]) == run for _, run, _ in part}
        changed = [
            _ReadRun(*each, [])
            for each in part
            if not is_same[each[1]["id"]]
            or numbers_before[each[1]["id"]] != {row["metric"]: row for row in each[2]}
        ]
        removed = (
            [before[each.run["id"]] for each in changed if each.run["id"] in before],
            [row for each in changed for row in numbers_before[each.run["id"]].values()],
        )
        _delete(
            connection,
            runs=[run["id"] for run in removed[0] if not is_same[run["id"]]],
            numbers_of=[each.run["id"] for each in changed],
        )
        added = _write(connection, changed, without={run for run, same in is_same.items() if same})
        change_counts(connection, added=added, removed=removed)
        workloads |= {run["workload"] for run in (*added[0], *removed[0])}
    for ids in _in_parts(sorted(gone)):
        removed = _forget(connection, ids)
        change_counts(connection, removed=removed)
        workloads |= {run["workload"] for run in removed[0]}
    update_workloads(connection, workloads)
    connection.execute(delete(SOURCES).where(SOURCES.c.name == name))
    if reported:
        description = encode_json(reported.source).decode()
        row = {"name": name, "description": description, "rows": count, "stamp": stamp}
        connection.execute(insert(SOURCES), [row])


_PART = 1000
"""Rows of a source that are in memory together, within one transaction."""


def _in_parts(rows: Iterable[_Any]) -> Iterator[list[_Any]]:
    iterator = iter(rows)
    while part := list(islice(iterator, _PART)):
        yield part


def _indexed(connection: Connection, runs: Sequence[str]) -> tuple[dict[str, Row], dict[str, dict[str, Row]]]:
    """Return the rows of runs that the index has, and those of their numbers by run and metric."""
    by_run: dict[str, dict[str, Row]] = {run: {} for run in runs}
    for row in _rows_of(connection, VALUES, VALUES.c.run.in_(runs)):
        by_run[row["run"]][row["metric"]] = row
    return {row["id"]: row for row in _rows_of(connection, RUNS, RUNS.c.id.in_(runs))}, by_run


def _rows_of(connection: Connection, table: Table, condition: ColumnElement[bool]) -> list[Row]:
    names = [column.name for column in table.c]
    return [
        dict(zip(names, row, strict=True)) for row in connection.execute(select(table).where(condition)).all()
    ]


def _forget(connection: Connection, runs: Sequence[str]) -> _Rows:
    """Remove runs from the index and return their rows."""
    before, numbers = _indexed(connection, runs)
    _delete(connection, runs=runs, numbers_of=runs)
    return [*before.values()], [row for each in numbers.values() for row in each.values()]


def _delete(connection: Connection, *, runs: Sequence[str], numbers_of: Sequence[str]) -> None:
    connection.execute(delete(VALUES).where(VALUES.c.run.in_(numbers_of)))
    connection.execute(delete(RUNS).where(RUNS.c.id.in_(runs)))


def _write(connection: Connection, read_runs: Sequence[_ReadRun], without: Set[str] = frozenset()) -> _Rows:
    """Write rows and return those of runs and of their numbers; `without` names runs that have one."""
    workloads = {each.workload["key"]: each.workload for each in read_runs}
    of_these = select(WORKLOADS).where(WORKLOADS.c.key.in_(workloads))
    existing = {row["key"]: dict(row) for row in connection.execute(of_these).mappings().all()}
    for key, row in existing.items():
        if row != (described := row | workloads[key]):
            connection.execute(update(WORKLOADS).where(WORKLOADS.c.key == key).values(described))
    missing = [{**workloads[key], "size": 0} for key in sorted(workloads.keys() - existing.keys())]
    runs, values = [each.run for each in read_runs], [row for each in read_runs for row in each.values]
    new_runs = [run for run in runs if run["id"] not in without]
    for table, rows in ((WORKLOADS, missing), (RUNS, new_runs), (VALUES, values)):
        if rows:
            connection.execute(insert(table), rows)
    return runs, values
