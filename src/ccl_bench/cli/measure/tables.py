"""The command `ccl-bench tables`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.api.tables import SCHEMA_FILE, documented_tables, schema_of, write_tables
from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.base.text import counted, encode_json
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import say
from ccl_bench.report.console import aligned, show
from ccl_bench.result.step_choice import parse_range

if TYPE_CHECKING:
    from ccl_bench.api.measured_run import MeasuredRun

ABOUT = """\
Without -o it lists the tables that the run has. The file tables.json next to them states what a row is, \
and type, unit and meaning of each column. If you choose steps, every table has only their rows.

Exit status: 0; 2 wrong usage, or a file already exists; 3 no trace of the run fills a named table; 4 \
nothing can be read.
"""

_MOST_RANKS = 10_000_000

Form = Literal["parquet", "csv", "text", "json"]
Names = Annotated[
    list[str] | None, Parameter(alias="-t", metavar="NAME", help="Table to write; all by default.")
]
Folder = Annotated[str | None, Parameter(alias="-o", metavar="DIR", help="Folder to write the tables into.")]
Ranks = Annotated[
    str | None, Parameter(metavar="RANKS", help="Ranks whose rows to write, such as 0,8,16 or 0-3.")
]


_RUN = "examples/runs/llama-tiny-pp4-gloo"

app = options.app(
    "tables",
    ABOUT,
    [f"{PROGRAM} tables {_RUN}", f"{PROGRAM} tables {_RUN} -o tables --table steps --format csv"],
)


@app.default
def tables(
    run: Annotated[str | None, Parameter(metavar="", help="Directory, trace file or URL of the run.")] = None,
    /,
    *,
    table: Names = None,
    output: Folder = None,
    form: Annotated[
        Form | None,
        Parameter(
            name="--format",
            alias="-f",
            converter=options.choice,
            help="Format of the files, parquet by default, or of the list.",
        ),
    ] = None,
    ranks: Ranks = None,
    explain: Annotated[
        str | None, Parameter(metavar="NAME", help="Show the columns of a table with their meanings.")
    ] = None,
    workload_card: options.Card = None,
    reading: options.ReadingOptions = options.DEFAULT_READING,
    force: options.Force = False,
) -> int:
    """Write or list the tables of a run."""
    if explain is not None:
        return _explain(explain, as_json=form == "json")
    if run is None:
        raise UsageError("no run is given", fix="name a directory, trace file or URL")
    wanted_ranks = parse_ranks(ranks) if ranks else None
    with reading.open(run, card=workload_card) as measured:
        if output is not None:
            _write(measured, Path(output), table or [], form or "parquet", wanted_ranks, force=force)
        elif form == "json":
            sys.stdout.write(_as_json([schema_of(each) for each in measured.tables.values()]))
        else:
            rows = [(name, table.doc.partition("\n")[0]) for name, table in measured.tables.items()]
            show(aligned(("TABLE", "ONE ROW"), rows))
    return 0


def parse_ranks(text: str) -> list[int]:
    """Return the ranks in a text such as `0,8-10`; raise UsageError if it names none."""
    ranges = [parse_range(part, "ranks") for part in text.split(",")]
    if max(last for _, last in ranges) > _MOST_RANKS:
        raise UsageError(f"{text} names more ranks than a run has", fix="write them as 0,8,16 or 0-3")
    return [rank for first, last in ranges for rank in range(first, last + 1)]


def _explain(name: str, *, as_json: bool) -> int:
    tables_by_name = documented_tables()
    if name not in tables_by_name:
        fix = did_you_mean(name, tables_by_name) or "ccl-bench tables RUN lists those of a run"
        raise UsageError(f"there is no table {name!r}", fix=fix)
    table = tables_by_name[name]
    if as_json:
        sys.stdout.write(_as_json(schema_of(table)))
        return 0
    rows = [(key, column.dtype, table.unit(key), column.doc) for key, column in table.columns.items()]
    show(f"{table.name}: {table.doc}", "", aligned(("COLUMN", "TYPE", "UNIT", "MEANING"), rows))
    return 0


def _write(
    measured: MeasuredRun,
    folder: Path,
    names: list[str],
    form: Form,
    ranks: list[int] | None,
    *,
    force: bool,
) -> None:
    if form == "text" or form == "json":
        raise UsageError(f"tables are not written as {form}", fix="give --format parquet or csv")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a directory", fix="name another with -o")
    for name in (*(f"{each}.{form}" for each in names or measured.tables), SCHEMA_FILE):
        options.refuse_existing(folder / name, force=force)
    empty = []
    for each in write_tables(measured.tables, folder, names=names, form=form, ranks=ranks):
        if each.path is None:
            empty.append(each.name)
        else:
            options.show_written(each.path, counted(each.rows, "row"))
    options.show_written(folder / SCHEMA_FILE)
    if empty:
        say(PROGRAM, f"note: not written, because they have no rows: {', '.join(empty)}")


def _as_json(content: object) -> str:
    return encode_json(content).decode() + "\n"
