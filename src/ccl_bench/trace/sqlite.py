"""Reader of profilers' SQLite databases: untrusted, of any schema version, perhaps damaged.

The file is opened immutable and read-only; if a journal lies beside it, SQLite first recovers a copy. Only
real tables are read, never a view, a virtual table or a generated column, so that no SQL of the file's author
runs. A table that lacks a column has nulls in it, one that is damaged gives the rows before the damage;
whatever a column holds becomes a typed value or null.
Tables with nothing unusual in them are read by C, where that is compiled, to the same rows.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.storage.journals import recovered
from ccl_bench.trace import memory
from ccl_bench.trace.native.library import ColumnPlace, LeftToSQLite, open_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ccl_bench.trace.native.library import Ranges, TableFile


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return None if value is None else str(value)


_KINDS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "integer": ("Int64", _whole),
    "real": ("Float64", lambda v: float(v) if isinstance(v, int | float) and math.isfinite(v) else None),
    "text": ("String", _text),
    "blob": ("Binary", lambda value: value if isinstance(value, bytes) else None),
}
"""What a column is read as: its polars type, and what becomes of a value of another type."""


def typed_column(name: str, kind: str, values: Sequence[object]) -> pl.Series:
    """Return values as a column; one of another kind becomes null, or text where that is asked for."""
    type_name, meaning = _KINDS[kind]
    dtype: pl.DataType = getattr(pl, type_name)()
    if kind in {"integer", "text"}:
        try:
            return pl.Series(name, values, dtype=dtype, strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
    return pl.Series(name, [meaning(value) for value in values], dtype=dtype)


def empty_frame(kinds: dict[str, str]) -> pl.DataFrame:
    """Return a frame of these columns without rows."""
    return pl.DataFrame([typed_column(name, kind, []) for name, kind in kinds.items()])


QUERY_SECONDS = 120.0
"""Longest time without a row; scanning a table of 10 GB takes a fraction of it."""

LONGEST_VALUE_BYTES = 16 << 20
_ROWS_AT_A_TIME = 1 << 16
_ROWS_BETWEEN_LOOKS = 1 << 10
_STEPS_BETWEEN_LOOKS = 100_000
_LEAST_ROW_BYTES = 8
_MOST_PARAMETERS = 900
_VALUE_BYTES = 16
"""Memory of a value in a column and, for a while, in a row."""


@dataclass(frozen=True, slots=True)
class DatabaseOrigin:
    """Writer of databases of one kind, in messages."""

    signs: tuple[str, ...]
    """How the names of tables begin, of which such a database has one."""
    is_none: str
    """What is said of another database, after its name."""
    fix: str
    """What to do about a damaged one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Condition on the rows that are read: they meet all that is set."""

    column: str = ""
    """A column of whole numbers."""
    ranges: Ranges = ()
    """First and last number of ranges; `column` lies in one of them."""
    brief: tuple[str, int] | None = None
    """A column of texts or blobs, and the characters or bytes that one has to be there with at most."""
    sql: str = ""
    """A condition in SQL."""

    def are_numbers(self) -> bool:
        """Whether each range is one number."""
        return all(first == last for first, last in self.ranges)

    def are_apart(self) -> bool:
        """Whether each range begins behind the one before it."""
        return all(before < first for (_, before), (first, _) in pairwise(self.ranges))

    def condition(self) -> str:
        """Return the whole condition in SQL, with question marks."""
        name = _quoted(self.column)
        within = f"{name} IN ({','.join('?' * len(self.ranges))})"
        between = " OR ".join([f"{name} BETWEEN ? AND ?"] * len(self.ranges))
        brief = f"length({_quoted(self.brief[0])}) <= {self.brief[1]}" if self.brief else ""
        parts = [(within if self.are_numbers() else f"({between})") if self.ranges else "", brief, self.sql]
        return " AND ".join(filter(None, parts)) or "1"

    def values(self) -> list[int]:
        """Return the values for the question marks."""
        if self.are_numbers():
            return [number for number, _ in self.ranges]
        return [number for pair in self.ranges for number in pair]


EVERY_ROW = Filter()


class Database:
    """One open database: its tables, and the damage in them."""

    def __init__(self, connection: sqlite3.Connection, name: str, size: int, origin: DatabaseOrigin) -> None:
        self.name = name
        """What messages call the file."""
        self.origin = origin
        self.damage: dict[str, str] = {}
        """Table → why rows of it are missing."""
        self.absent_texts = 0
        """How many texts rows refer to that are not in the file."""
        self.cut = ""
        """Why the file as a whole is not as it should be; empty for a sound one."""
        self.unfinished = ""
        """What its writer did not finish; empty if nothing is known to be missing."""
        self.pages: TableFile | None = None
        """What reads tables of a sound file by C; None where SQLite reads all of them."""
        self._connection = connection
        self._most_rows = max(size // _LEAST_ROW_BYTES, 1)
        self._until = 0.0
        self._most_text = 2 * size + LONGEST_VALUE_BYTES
        self._text_bytes = 0
        connection.text_factory = self._text
        connection.set_progress_handler(lambda: time.monotonic() > self._until, _STEPS_BETWEEN_LOOKS)
        self.types: dict[str, dict[str, str]] = {}
        """Table → column → type as it is declared."""
        self._places: dict[str, tuple[int, dict[str, ColumnPlace]]] = {}
        """Table → its first page, and where the values of its columns are; only usual tables."""
        self.refused = self._found_tables()
        """Names of views and virtual tables."""
        self.columns = {table: frozenset(types) for table, types in self.types.items()}

    def _text(self, raw: bytes) -> str:
        """Return text as it is read; a default in the schema can stand for more than the file holds."""
        self._text_bytes += len(raw)
        memory.hold(len(raw))
        if self._text_bytes > self._most_text:
            raise sqlite3.DataError("it claims more text than the file can hold")
        return raw.decode("utf-8", errors="replace")

    def _found_tables(self) -> list[str]:
        """Note the columns of each real table; return the names of views and virtual tables.

        SQLite refuses a file that is shorter than it should be, unless its schema counts as writable.
        """
        try:
            return self._tables()
        except sqlite3.DatabaseError as error:
            self.cut = str(error)
        try:
            self._connection.execute("PRAGMA writable_schema=ON").close()
            return self._tables()
        except sqlite3.DatabaseError as error:
            raise InputError(f"cannot be read: {error}", where=self.name, fix=self.origin.fix) from error

    def _tables(self) -> list[str]:
        query = "SELECT name, type, rootpage, sql FROM sqlite_master WHERE type != 'index'"
        entries = [(str(name), kind, page, str(sql)) for name, kind, page, sql in self.rows(query)]
        self.types = {}
        for table, kind, page, sql in entries:
            if kind != "table" or not page:
                continue
            columns = list(self.rows(f"PRAGMA table_xinfo({_quoted(table)})"))
            types = {str(name): str(declared) for _, name, declared, *_, hidden in columns if not hidden}
            self.types[table] = types
            # A damaged schema may have a table by another name than its definition, which is what counts.
            is_named = re.match(rf"CREATE TABLE [\"'`\[]?{re.escape(table)}[\"'`\]]?[\s(]", sql)
            if not is_named or not isinstance(page, int) or len(types) < len(columns):  # some are generated
                continue
            keys = [str(name) for _, name, *_, is_key, _ in columns if is_key]
            row_number = keys[0] if len(keys) == 1 and types[keys[0]].upper() == "INTEGER" else None
            if row_number and any(
                origin == "pk" for *_, origin, _ in self.rows(f"PRAGMA index_list({_quoted(table)})")
            ):
                row_number = None  # INTEGER PRIMARY KEY DESC is a column as others
            places = {
                str(name): ColumnPlace(
                    -1 if name == row_number else number, _is_real(types[str(name)]), default is not None
                )
                for number, name, _, _, default, *_ in columns
            }
            self._places[table] = page, places
        refused = (
            name for name, kind, page, _ in entries if kind == "view" or (kind == "table" and not page)
        )
        return sorted(refused)

    def __contains__(self, table: str) -> bool:
        """Whether there is a table of this name, with or without rows."""
        return table in self.columns

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is a table with all these columns."""
        return self.columns.get(table, frozenset()).issuperset(columns) and table in self.columns

    def rows(self, query: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; InputError if none comes for too long."""
        self._until = time.monotonic() + QUERY_SECONDS
        self._text_bytes = 0
        try:
            with closing(self._connection.execute(query, values)) as cursor:
                for count, row in enumerate(cursor):  # many at a time would lose those before damage
                    if not count % _ROWS_BETWEEN_LOOKS:
                        self._until = time.monotonic() + QUERY_SECONDS
                    yield row
        except UnicodeDecodeError as error:  # in the name of a column
            raise sqlite3.DatabaseError(str(error)) from error
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
            message = f"reading stopped after {QUERY_SECONDS:.0f} s without a row"
            raise InputError(message, where=self.name, fix=self.origin.fix) from error

    def frame(self, table: str, kinds: dict[str, str], only: Filter = EVERY_ROW) -> pl.DataFrame:
        """Return columns of a table; those that it lacks are null, a table that is absent is empty.

        `kinds` maps each column to `integer`, `real`, `text` or `blob`.
        """
        if table not in self.columns:
            return empty_frame(kinds)
        if (rows := self._scanned(table, kinds, only)) is not None:
            return rows
        expressions = ", ".join(
            "NULL"
            if name not in self.columns[table]
            else f"CAST({_quoted(name)} AS BLOB)"
            if kind == "blob"
            else _quoted(name)
            for name, kind in kinds.items()
        )
        return self._queried(f"SELECT {expressions}", table, kinds, only)

    def distinct(self, table: str, kinds: dict[str, str], only: Filter = EVERY_ROW) -> pl.DataFrame:
        """Return the different rows of columns of a table; none if it lacks one of them."""
        if not self.has(table, *kinds):
            return empty_frame(kinds)
        if (rows := self._scanned(table, kinds, only, pl.DataFrame.unique)) is not None:
            return rows.unique()
        return self._queried(f"SELECT DISTINCT {', '.join(map(_quoted, kinds))}", table, kinds, only)

    def _scanned(
        self,
        table: str,
        kinds: dict[str, str],
        only: Filter,
        shorten: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows,
    ) -> pl.DataFrame | None:
        """Return a table's rows as C reads them, each block shortened; None if SQLite has to read it."""
        present = {name: kind for name, kind in kinds.items() if name in self.columns[table]}
        if self.pages is None or table not in self._places or not present or self.cut or only.sql:
            return None
        if not (only.are_numbers() or only.are_apart()):
            return None
        root, places = self._places[table]
        declared = self.types[table][only.column].upper() if only.ranges else ""
        if declared and "INT" not in declared:  # SQLite would convert what it compares with
            return None
        blocks = self.pages.blocks(
            root,
            {name: (places[name], kind) for name, kind in present.items()},
            numbers=(places[only.column], only.ranges) if only.ranges else None,
            brief=(places[only.brief[0]], only.brief[1]) if only.brief else None,
            most_rows=self._most_rows,
            most_text_bytes=self._most_text,
        )
        parts, held_bytes, known_texts = [empty_frame(present)], 0, 0
        try:
            with closing(blocks):
                for rows, text_bytes in blocks:
                    parts.append(shorten(rows))
                    size = _VALUE_BYTES * parts[-1].height * len(kinds) + text_bytes - known_texts
                    held_bytes, known_texts = held_bytes + size, text_bytes
                    memory.hold(size)
        except (LeftToSQLite, MemoryError):
            memory.hold(-held_bytes)
            return None
        result = pl.concat(parts[1:] or parts)
        absent = [
            pl.lit(None, empty_frame(kinds).schema[name]).alias(name) for name in kinds if name not in present
        ]
        return result.with_columns(absent).select(*kinds) if absent else result

    def _queried(self, select: str, table: str, kinds: dict[str, str], only: Filter) -> pl.DataFrame:
        """Return the rows of a query up to the first damage, in the order of the table.

        An index would give them in its own order.
        """
        query = f"{select} FROM {_quoted(table)} NOT INDEXED WHERE {only.condition()}"
        parts, block, count = [empty_frame(kinds)], list[tuple[object, ...]](), 0
        try:
            for count, row in enumerate(self.rows(query, only.values()), 1):
                block.append(row)
                if len(block) == _ROWS_AT_A_TIME:
                    parts.append(_typed(kinds, block))
                    block = []
                if count > self._most_rows:
                    self.damage[table] = "it claims more rows than the file can hold"
                    break
        except sqlite3.DatabaseError as error:
            self.damage[table] = f"{error}, after {count:,} rows"
        if block:
            parts.append(_typed(kinds, block))
        return pl.concat(parts[1:] or parts)

    def only(self, table: str, column_name: str, *ranges: tuple[int, int]) -> Filter:
        """Return a filter for one column, or none if the table lacks that column."""
        return Filter(column_name, ranges) if self.has(table, column_name) else EVERY_ROW

    def strings(self, ids: pl.Series, table: str = "StringIds", column: str = "value") -> pl.Series:
        """Return the text behind each `id` of a table; null if there is none."""
        if ids.null_count() == ids.len():
            return pl.Series(ids.name, [None], dtype=pl.String).new_from_index(0, ids.len())
        wanted_ids = sorted({*ids.unique()} - {None})
        id_ranges = tuple((number, number) for number in wanted_ids)
        kinds = {"id": "integer", column: "text"}
        rows = self._scanned(table, kinds, Filter("id", id_ranges)) if self.has(table, *kinds) else None
        if rows is None:
            rows = pl.concat(
                self.frame(table, kinds, Filter("id", id_ranges[first : first + _MOST_PARAMETERS]))
                for first in range(0, len(id_ranges), _MOST_PARAMETERS)
            )
        rows = rows.drop_nulls()
        texts = dict(zip(rows["id"], rows[column], strict=True))
        self.absent_texts += len(wanted_ids) - len(texts)
        return ids.replace_strict(list(texts), list(texts.values()), default=None, return_dtype=pl.String)


def _typed(kinds: dict[str, str], block: list[tuple[object, ...]]) -> pl.DataFrame:
    """Return rows with their types, once they are counted as held."""
    memory.hold(_VALUE_BYTES * len(block) * len(kinds))
    columns = zip(kinds.items(), zip(*block, strict=True), strict=True)
    return pl.DataFrame([typed_column(*kind, values) for kind, values in columns])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_real(declared_type: str) -> bool:
    """Whether a column gives whole numbers as real ones, by the rules of https://sqlite.org/datatype3.html."""
    return bool(re.search("(?i)REAL|FLOA|DOUB", declared_type)) and not re.search(
        "(?i)INT|CHAR|CLOB|TEXT|BLOB", declared_type
    )


@contextmanager
def open_database(path: Path, name: str, origin: DatabaseOrigin) -> Iterator[Database]:
    """Open a database of some origin; InputError if the file is none that can be read.

    `name` names the file in messages. A database with a journal is read by SQLite alone.
    """
    with ExitStack() as stack:
        whole = stack.enter_context(recovered(path, name))
        try:
            status = whole.path.stat()
            address = whole.path.absolute().as_uri() + "?mode=ro&immutable=1"
            connection = sqlite3.connect(address, uri=True, isolation_level=None, cached_statements=0)
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"cannot be opened: {error}", where=name, fix="check the path") from error
        stack.enter_context(closing(connection))
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for guard in ("trusted_schema=OFF", "query_only=ON", "mmap_size=0", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {guard}").close()
        try:
            database = Database(connection, name, status.st_size, origin)
            if not any(table.startswith(origin.signs) for table in database.columns):
                fix = "leave it out of the run, or rename it"
                raise InputError(origin.is_none, where=name, fix=fix)
            database.unfinished = whole.unfinished
            if whole.path == path:
                database.pages = stack.enter_context(open_tables(path, status))
            yield database
        except sqlite3.DatabaseError as error:
            raise InputError(f"is damaged: {error}", where=name, fix=origin.fix) from error


def whole_file_findings(database: Database, file: str) -> Iterator[Finding]:
    """Report a file that is cut off or damaged, or that its writer did not finish."""
    if database.cut:
        message = f"the database is truncated or damaged ({database.cut}); what can be read is used"
        yield Finding("file-truncated", "error", message, file)
    if database.unfinished:
        message = f"the database was not closed by its writer: {database.unfinished}"
        yield Finding("database-unfinished", "error", message, file)


def absent_names(database: Database, file: str, touches: tuple[str, ...]) -> Iterator[Finding]:
    """Report names that rows refer to and that are not in the file."""
    if count := database.absent_texts:
        message = f"{counted(count, 'name is', 'names are')} not in the file: their rows count as one name"
        yield Finding("names-missing", "error", message, file, count=count, touches=touches)
