"""Reading of small TOML files: with a bound on keys, and with the line of each key."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from typing import Any

from ccl_bench.base.errors import InputError
from ccl_bench.card.yaml_tree import IssueLog

_MOST_PARTS = 65
"""Of a key: configurations have five at most, and tomllib takes a time that grows with the square."""
_NO_KEY = re.compile(r""""(?:\\.|[^"\\\n])*"|'[^'\n]*'|\d\.\d|#.*""")


def toml_value(text: str, file: str = "") -> tuple[dict[str, Any], IssueLog]:
    """Return the data in TOML text and a log for issues about it; InputError if it is not TOML."""
    try:
        if any(line.count(".") >= _MOST_PARTS for line in _NO_KEY.sub("_", text).splitlines()):
            raise ValueError(f"a key has more than {_MOST_PARTS} parts")
        data = tomllib.loads(text)
    except (RecursionError, ValueError) as error:  # TOMLDecodeError is a ValueError
        raise InputError(f"is not valid TOML: {error}", where=file, fix="correct the line") from error
    return data, IssueLog(file, lines=_lines(text))


def _lines(text: str) -> dict[str, int]:
    """Return dotted key → line, for lines that hold one key; `name[1].key` in the second table of a list."""
    lines: dict[str, int] = {}
    tables = Counter[str]()
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[([\w.\-]+)\]\]", line):
            section = f"{header[1]}[{tables[header[1]]}]."
            tables[header[1]] += 1
            lines[section[:-1]] = number
        elif header := re.match(r"\s*\[([\w.\-]+)\]", line):
            section = f"{header[1]}."
            lines.setdefault(header[1], number)
        elif key := re.match(r"\s*([\w.\-]+)\s*=", line):
            lines.setdefault(f"{section}{key[1]}", number)
    return lines
