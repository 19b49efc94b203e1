"""Tables of a run as frames: their list, the meaning of their columns, reading and writing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ccl_bench import storage
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.base.errors import CclBenchError, NotMeasurable, UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.registry import did_you_mean
from ccl_bench.base.text import INERT, INERT_PATTERN, encode_json, harmless
from ccl_bench.engine.read_trace import contributes, has_rows
from ccl_bench.schema import KEYS, TABLES, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ccl_bench.evaluate.load import LoadedRun
    from ccl_bench.result import Result
    from ccl_bench.run import Run

TableForm = Literal["parquet", "csv"]

SCHEMA_FILE = "tables.json"
"""File with columns, units and meanings of the tables in its folder."""

_TIMES = ("start_ns", "time_ns")


def documented_tables() -> dict[str, Table]:
    """Return every table by name, tables of single traces also have the columns that identify the trace."""
    DERIVED.load()
    tables = {name: _with_keys(table) for name, table in TABLES.items()}
    for each in DERIVED:
        tables[each.table.name] = each.table if each.across_ranks else _with_keys(each.table)
    return tables


def _with_keys(table: Table) -> Table:
    return replace(table, columns=MappingProxyType({**KEYS, **table.columns}))


class RunTables(Mapping[str, Table]):
    """The tables that the traces of a run can fill, by name, with their columns and units."""

    def __init__(self, run: Run, load: Callable[[Run, Iterable[str]], LoadedRun]) -> None:
        self._run = run
        self._load = load
        """Reads tables of a run, or of some of its traces."""
        forms = {trace.form for trace in run.traces}
        self._tables = {
            name: table
            for name, table in documented_tables().items()
            if any(contributes(form, name) for form in forms) and (name in TABLES or has_rows(name, forms))
        }

    def __getitem__(self, name: str) -> Table:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def load(self, name: str, *, ranks: Iterable[int] | None = None) -> pl.DataFrame:
        """Return a table as a frame; see `MeasuredRun.table`."""
        return next(self.load_each([name], ranks=ranks))[1]

    def load_each(
        self, names: Iterable[str], *, ranks: Iterable[int] | None = None
    ) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield tables with their names: raw tables one by one, all derived tables from one pass."""
        table_names = [self._checked_name(name) for name in names]
        wanted_ranks = None if ranks is None else {*ranks}
        raw = [name for name in table_names if name in TABLES]
        yield from ((name, self._raw(name, wanted_ranks)) for name in raw)
        derived = [name for name in table_names if name not in TABLES]
        if not derived:
            return
        loaded = self._load(self._run, derived)
        for name in derived:
            yield name, _of_ranks(_of(loaded, self[name]), wanted_ranks, loaded)

    def _checked_name(self, name: str) -> str:
        if name in self._tables:
            return name
        if name in documented_tables():
            fix = "ccl-bench tables RUN lists those that it has"
            raise NotMeasurable(f"no trace of the run fills the table {name!r}", fix=fix)
        fix = did_you_mean(name, documented_tables()) or f"one of: {', '.join(self._tables)}"
        raise UsageError(f"there is no table {name!r}", fix=fix)

    def _raw(self, name: str, ranks: set[int] | None) -> pl.DataFrame:
        """Return a raw table; if the name of each trace states its rank, only the requested ones are read."""
        traces, choice = self._run.traces, self._run.choice
        timed = next((column for column in _TIMES if column in TABLES[name].columns), None)
        table_names = [name, "steps"] if choice and timed else [name]
        trace_ranks = [trace.rank for trace in traces]
        every = list(range(len(traces)))
        places = every
        if ranks is not None and None not in trace_ranks and len({*trace_ranks}) == len(trace_ranks):
            places = [place for place in every if trace_ranks[place] in ranks] or every
        loaded = self._load(replace(self._run, traces=[traces[place] for place in places]), table_names)
        if len(places) < len(every) and {trace.rank for trace in loaded.traces} != ranks:
            places = every  # a file states another rank than its name
            loaded = self._load(self._run, table_names)
        table = _of_ranks(_of(loaded, self[name]), ranks, loaded)
        if choice and timed:
            # The rows that begin in a step of their trace.
            steps = loaded.inputs["steps"]
            bounds = steps.select("trace", begin="start_ns", until="end_ns").sort("begin")
            placed = table.with_row_index("row").drop_nulls(timed).sort(timed)
            inside = placed.join_asof(
                bounds, left_on=timed, right_on="begin", by="trace", check_sortedness=False
            )
            table = inside.filter(pl.col(timed) < pl.col("until")).sort("row").select(table.columns)
        if len(places) < len(every):
            # Traces were numbered as if there were no others; devices of a trace are further multiples.
            number = pl.col("trace")
            position = (number % len(places)).replace_strict(dict(enumerate(places)), return_dtype=pl.Int64)
            table = table.with_columns(trace=position + len(every) * (number // len(places)))
        return table


def _of(loaded: LoadedRun, table: Table) -> pl.DataFrame:
    """Return a loaded table with its documented columns in order."""
    if table.name in loaded.broken:
        error = loaded.broken[table.name]
        raise NotMeasurable(f"the table {table.name!r} failed: {type(error).__name__}: {error}") from error
    frame: pl.DataFrame = loaded.inputs[table.name]
    return frame.select([*table.columns])


def _of_ranks(table: pl.DataFrame, ranks: set[int] | None, loaded: LoadedRun) -> pl.DataFrame:
    """Return the rows of some ranks; raise UsageError if the trace of one is not loaded.

    Rows of a process with several devices have no own rank, and belong to their trace.
    """
    if ranks is None:
        return table
    if missing_ranks := ranks - {trace.rank for trace in loaded.traces}:
        message = f"the run has no trace of rank {', '.join(map(str, sorted(missing_ranks)))}"
        raise UsageError(message, fix="ccl-bench inspect lists its ranks")
    if "trace" in table.columns:
        positions = [place for place, trace in enumerate(loaded.traces) if trace.rank in ranks]
        return table.filter((pl.col("trace") % len(loaded.traces)).is_in(positions))
    return table.filter(pl.col("rank").is_in(sorted(ranks))) if "rank" in table.columns else table


def results_frame(results: Iterable[Result]) -> pl.DataFrame:
    """Return results as a table with one row each."""
    rows = [
        (
            each.metric,
            each.value,
            each.unit,
            each.better,
            each.status,
            each.reason,
            each.fix,
            each.window,
            each.ranks,
            [*dict.fromkeys(finding.code for finding in each.findings)],
        )
        for each in results
    ]
    return pl.DataFrame(rows, _RESULT_COLUMNS, orient="row")


_RESULT_COLUMNS: dict[str, Any] = {
    "metric": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
    "better": pl.String,
    "status": pl.String,
    "reason": pl.String,
    "fix": pl.String,
    "window": pl.String,
    "ranks": pl.List(pl.Int64),
    "findings": pl.List(pl.String),
}


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """One table in a file."""

    name: str
    rows: int
    path: Path | None
    """None if there are no rows and no file."""


def write_tables(
    tables: RunTables,
    folder: Path,
    *,
    names: Sequence[str] = (),
    form: TableForm = "parquet",
    ranks: Iterable[int] | None = None,
) -> Iterator[WrittenTable]:
    """Write the named ones of the tables of a run, or all, and their schema into `folder`, and yield each.

    In CSV the elements of a list are separated by spaces.
    """
    written = []
    for name, table in tables.load_each(names or tables, ranks=ranks):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.{form}" if table.height else None
        if path:
            with storage.write_atomically(path) as temporary:
                try:
                    if form == "parquet":
                        schema = json.dumps(schema_of(tables[name]), ensure_ascii=False)
                        table.write_parquet(temporary, metadata={"ccl_bench.table": schema})
                    else:
                        _written_out(table).write_csv(temporary)
                except pl.exceptions.PolarsError as error:  # of the system, in its words
                    fix = "free space there, or write elsewhere"
                    raise CclBenchError(f"cannot be written: {error}", where=str(path), fix=fix) from error
                temporary.chmod(0o644)
        written.append(WrittenTable(name, table.height, path))
        yield written[-1]
    schemas = [{**schema_of(tables[each.name]), "rows": each.rows} for each in written]
    storage.files.replace_text(folder / SCHEMA_FILE, encode_json(schemas).decode() + "\n")


def _written_out(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table as CSV can hold it: lists as text, and text harmless, also in a spreadsheet."""
    kinds = table.schema.items()
    lists = [name for name, kind in kinds if kind.is_nested()]
    inner = {name: kind.inner if isinstance(kind, pl.List) else kind for name, kind in kinds}
    texts = [name for name, kind in inner.items() if isinstance(kind, pl.String | pl.Categorical)]
    joined = (pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(" ") for name in lists)
    inert = (pl.col(name).str.replace_all(INERT_PATTERN, INERT) for name in texts)
    table = table.with_columns(joined)
    return table.with_columns(_harmless(table[name].cast(pl.String)) for name in texts).with_columns(inert)


def _harmless(texts: pl.Series) -> pl.Series:
    """Return texts without characters that act; each distinct one is looked at once."""
    distinct = texts.unique().drop_nulls().to_list()
    changed = {text: clean for text in distinct if (clean := harmless(text)) != text}
    return texts.replace(list(changed), list(changed.values())) if changed else texts


def schema_of(table: Table) -> dict[str, object]:
    """Return the description of a table and its columns, as plain data."""
    columns = [
        {"name": name, "type": column.dtype, "unit": table.unit(name), "doc": column.doc}
        for name, column in table.columns.items()
    ]
    return {"name": table.name, "doc": table.doc, "columns": columns}
