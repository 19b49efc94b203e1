"""Reading of small JSON files: with limits, and with errors for repeated keys and impossible numbers."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.card.yaml_tree import IssueLog, shown
from ccl_bench.storage.files import MIB, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.storage.files import Location

MAX_BYTES = 64 * MIB


def read_json(path: Location, limit: int = MAX_BYTES) -> tuple[Any, IssueLog]:
    """Return a file's data and a log for issues about it; InputError if it is not JSON."""
    return json_value(read_text(path, limit), str(path))


def json_value(text: str, file: str = "") -> tuple[Any, IssueLog]:
    """Return the data in JSON text and a log for issues about it; `file` names it in messages."""
    log = IssueLog(file)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in pairs:
            if key in members and repr(members[key]) != repr(value):
                log.error(shown(key), "is written more than once with different content", "keep one")
                value = None
            members[key] = value
        return members

    try:
        return json.loads(text, object_pairs_hook=unique), log
    except RecursionError as error:
        raise InputError(
            "is nested too deeply", where=file, fix="check that this is the right file"
        ) from error
    except ValueError as error:
        raise InputError(
            f"is not valid JSON: {getattr(error, 'msg', error)}",
            where=f"{file}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else file,
            fix="write the file again; it may be cut off",
        ) from error


def key_lines(text: str) -> dict[str, int]:
    """Return the line of the first occurrence of each quoted key."""
    lines: dict[str, int] = {}
    for line, content in enumerate(text.splitlines(), start=1):
        for key in re.findall(r'"([^"\\]*)"\s*:', content):
            lines.setdefault(key, line)
    return lines


def finite_number(value: object, path: str, log: IssueLog) -> float | None:
    """Return a finite number, or None and an error at `path`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        log.error(path, f"{shown(repr(value))} is not a number and is left out", "write a plain number")
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        log.error(
            path, f"{number} is not a finite number and is left out", "find out why the run wrote this value"
        )
        return None
    return number


MAX_UNKNOWN = 20
"""Unknown keys of one file that are reported."""


def report_unknown_keys(strays: Iterable[tuple[str, str]], known_keys: Iterable[str], log: IssueLog) -> None:
    """Record each unknown (key, path) once, at its first path: a warning where a known key is near."""
    paths: dict[str, list[str]] = {}
    for key, path in strays:
        paths.setdefault(key, []).append(path)
    unknown_keys = [*paths.items()]
    for key, (first, *others) in unknown_keys[:MAX_UNKNOWN]:
        more = f", here and at {len(others)} more places" if others else ""
        near = did_you_mean(key.lower(), known_keys)
        record, fix = (log.warning, near) if near else (log.note, f"known: {', '.join(known_keys)}")
        record(first, f"is not a key of this format and is ignored{more}", fix)
    if unlisted := len(unknown_keys[MAX_UNKNOWN:]):
        log.note("", f"{unlisted} more keys are unknown", "check that this is the right file")
