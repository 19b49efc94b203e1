"""CSV that a spreadsheet shows and never executes."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

INERT_PATTERN = r"""(^[\s\ufeff]*|[;|\t\r\n"]\s*)([=+\-@\t\r\uff1d\uff0b\uff0d\uff20])"""
"""Where a spreadsheet may find a formula, in the regular expressions of Python, Rust and JavaScript alike.

Characters that begin one (OWASP, CSV injection), at the beginning of a cell or of what becomes one where a
spreadsheet divides by `;`, `|`, tabs or quotes. A comma is no such place, for text with one is quoted.
"""
INERT = "${1}'${2}"
"""What replaces it, as Rust writes it: behind `'` it is text."""
_FORMULA = re.compile(INERT_PATTERN)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def inert(value: object) -> object:
    """Return a value in which no spreadsheet finds a formula; numbers, also as text, stay what they are."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return _FORMULA.sub(r"\1'\2", value)


def csv_lines(rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield rows as lines of CSV."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for row in rows:
        writer.writerow([inert(cell) for cell in row])
        yield line.getvalue()
        line.seek(0)
        line.truncate()
