"""Write the files to measure: one real trace repeated in time, and the sets of the corpus."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCE = "kineto/nccl-args/rank0.nccl_data.json.gz"
EXPORT = "nsys/two-gpu-sendrecv/mfu_2gpu_before.sqlite"
"""An export of Nsight Systems, of two processes with a GPU each."""
WARM_UP = "kineto/dlrm-8rank/worker0_step_12.pt.trace.json.gz"

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENTS_END = re.compile(rb"(?<=\})\s*\](?=\s*[,}])")
_BETWEEN_EVENTS = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_ONCE_PER_FILE = re.compile(rb'"ph": "[Mi]"|"cat": "Trace"')
_SPAN = re.compile(rb'"ts": (\d+)[.\d]*, "dur": (\d+)')
_STEP = rb"ProfilerStep#"
_TIME = rb'"ts": '
_ID = rb'"(?:id|correlation|External id|Record function id|Sequence number|Ev Idx)": '
_STEP_VALUE = re.compile(_STEP + rb"(\d+)")
_ID_VALUE = re.compile(_ID + rb"(\d+)")
_MOVING = re.compile(rb"(" + _STEP + rb"|" + _TIME + rb"|" + _ID + rb"(?!0\b))(\d+)")
_RANK = re.compile(rb'("distributedInfo": \{[^{}]*?"rank": )\d+')

_GAP_US = 1000
"""Pause between one repetition and the next."""


@dataclass(frozen=True, slots=True)
class Input:
    """Files that every contestant loads, one after the other."""

    name: str
    files: tuple[Path, ...]
    size: int
    """Bytes, after decompression."""
    warm_up: Path | None = None
    """What contestants load first, where it is no Kineto trace."""

    @property
    def compressed(self) -> bool:
        """Whether the files have to be inflated."""
        return self.files[0].suffix == ".gz"


def sized(name: str, files: tuple[Path, ...]) -> Input:
    """Return `files` as an input, with the bytes of JSON in them."""
    return Input(name, files, sum(_size(file) for file in files))


def _size(file: Path) -> int:
    return len(gzip.decompress(file.read_bytes())) if file.suffix == ".gz" else file.stat().st_size


def corpus_sets(corpus: Path) -> Iterator[Input]:
    """Yield every Kineto run of the corpus."""
    for folder in sorted((corpus / "kineto").iterdir()):
        yield sized(folder.name, tuple(sorted(folder.glob("*.json*"))))


def repeated(text: bytes, copies: int) -> bytes:
    """Return a trace whose recorded steps happen `copies` times, as `repetitions` makes it."""
    return b"".join(repetitions(text, copies))


def repetitions(text: bytes, copies: int) -> Iterator[bytes]:
    """Yield the parts of a trace whose recorded steps happen `copies` times, one after the other.

    Times, step numbers and every id move on from one repetition to the next, so that nothing
    in the result is there twice. What stands once in a trace, such as names of threads, still does.
    """
    opening = _EVENTS.search(text)
    closing = _EVENTS_END.search(text, opening.end()) if opening else None
    if not opening or not closing:
        raise ValueError("the source is no Kineto trace")
    yield text[: closing.start()]
    first = text[opening.end() : closing.start()]
    events = [event for event in _BETWEEN_EVENTS.split(first) if not _ONCE_PER_FILE.search(event)]
    again = b",\n  ".join(event.strip() for event in events)
    strides = _strides(again)
    for copy in range(1, copies):
        yield b",\n  " + _moved(again, copy, strides)
    yield text[closing.start() :]


def of_size(text: bytes, size: int, folder: Path) -> Path:
    """Write the trace repeated until it has about `size` bytes into `folder`, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rank0.json"
    if not file.exists():
        copies = max(1, round(size / len(text)))
        unfinished = file.with_suffix(".part")
        with unfinished.open("wb") as stream:
            stream.writelines(repetitions(text, copies))
        unfinished.rename(file)
    return file


ESCAPED_EVERY = 1000
"""One event of so many has an escape in its name in the layout `escapes`."""


def layouts(text: bytes, folder: Path) -> list[Input]:
    """Write a trace in layouts of other tools: one event per line, indented, compact, with escapes."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = json.loads(text)
    written: dict[str, Callable[[], str]] = {
        "one event a line": lambda: _one_a_line(whole),
        "json.dumps": lambda: json.dumps(whole),
        "indent 2": lambda: json.dumps(whole, indent=2),
        "indent 4": lambda: json.dumps(whole, indent=4),
        "compact": lambda: json.dumps(whole, separators=(",", ":")),
        "escapes": lambda: json.dumps(_with_escapes(whole)),
    }
    layout_files = []
    for name, make in written.items():
        file = folder / f"{name.replace(' ', '-')}.json"
        if not file.exists():
            file.write_text(make(), encoding="utf-8")
        layout_files.append(sized(name, (file,)))
    return layout_files


def _one_a_line(whole: dict[str, Any]) -> str:
    head = json.dumps({key: value for key, value in whole.items() if key != "traceEvents"})[:-1]
    return f'{head}, "traceEvents": [\n' + ",\n".join(map(json.dumps, whole["traceEvents"])) + "\n]}"


def _with_escapes(whole: dict[str, Any]) -> dict[str, Any]:
    events = [
        event | {"name": f"{event['name']} \u00e9"} if number % ESCAPED_EVERY == 0 else event
        for number, event in enumerate(whole["traceEvents"])
    ]
    return whole | {"traceEvents": events}


def _strides(events: bytes) -> dict[bytes, int]:
    """Return the increments of steps, times and ids from one repetition to the next."""
    spans = [(int(start), int(start) + int(length)) for start, length in _SPAN.findall(events)]
    return {
        _STEP: len(set(_STEP_VALUE.findall(events))),
        _TIME: max(end for _, end in spans) - min(start for start, _ in spans) + _GAP_US,
        _ID: max(int(number) for number in _ID_VALUE.findall(events)) + 1,
    }


def _moved(events: bytes, copy: int, strides: dict[bytes, int]) -> bytes:
    def later(match: re.Match[bytes]) -> bytes:
        label, number = match.groups()
        return label + b"%d" % (int(number) + copy * strides.get(label, strides[_ID]))

    return _MOVING.sub(later, events)


def of_ranks(text: bytes, ranks: int, folder: Path) -> tuple[Path, ...]:
    """Write the trace once for each rank into `folder`, unless it is there, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / f"rank{rank}.json" for rank in range(ranks))
    for rank, file in enumerate(files):
        content, replacements = _RANK.subn(rb"\g<1>%d" % rank, text, count=1)
        if not replacements:
            raise ValueError("the source does not say which rank it is")
        if not file.exists() or file.stat().st_size != len(content):
            file.write_bytes(content)
    return files


_TIMED = ("start", "end", "timestamp")
_NUMBERED = ("correlationId", "rangeId")
_OPERATOR = "op_id = "
"""What precedes the number of an operator in the text of a range."""


def repeated_export(source: Path, target: Path, copies: int) -> Path:
    """Write an export whose recorded work happens `copies` times, unless it is there, and return it.

    Times, correlations and the numbers in the texts of operators move on from one repetition to the next.
    """
    if target.exists():
        return target
    unfinished = target.with_suffix(".part")
    shutil.copyfile(source, unfinished)
    with closing(sqlite3.connect(unfinished, isolation_level=None)) as database:
        for guard in ("journal_mode=OFF", "synchronous=OFF"):
            database.execute(f"PRAGMA {guard}").close()
        database.execute("BEGIN")
        tables = _timed_tables(database)
        stride = _span(database, tables) + 1000 * _GAP_US
        highest = "SELECT max(correlationId) + 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        (ids,) = database.execute(highest).fetchone()
        for table, columns in tables.items():
            _repeat(database, table, columns, {"copies": copies, "stride": stride, "ids": ids})
        database.execute("COMMIT")
    unfinished.rename(target)
    return target


def _timed_tables(database: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the columns of each table with times."""
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = {name: [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')] for name in names}
    return {name: fields for name, fields in columns.items() if {"start", "end"} <= {*fields}}


def _span(database: sqlite3.Connection, tables: dict[str, list[str]]) -> int:
    ends = [
        database.execute(f'SELECT min("start"), max("end") FROM "{table}"').fetchone() for table in tables
    ]
    known_ends = [pair for pair in ends if None not in pair]
    return int(max(end for _, end in known_ends) - min(start for start, _ in known_ends))


def _repeat(database: sqlite3.Connection, table: str, columns: list[str], by: dict[str, int]) -> None:
    values = {name: f'"{name}"' for name in columns}
    values |= {name: f'"{name}" + copy * :stride' for name in _TIMED if name in values}
    values |= {name: f'"{name}" + copy * :ids' for name in _NUMBERED if name in values}
    if "text" in values:
        values["text"] = f"replace(\"text\", '{_OPERATOR}', '{_OPERATOR}' || copy)"
    database.execute(
        "WITH RECURSIVE moved(copy) AS "
        "(SELECT 1 UNION ALL SELECT copy + 1 FROM moved WHERE copy + 1 < :copies) "
        f'INSERT INTO "{table}" SELECT {", ".join(values.values())} '
        f'FROM moved CROSS JOIN (SELECT * FROM "{table}" ORDER BY rowid)',
        by,
    )
