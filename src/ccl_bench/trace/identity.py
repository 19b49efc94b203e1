"""Whose trace a file is, from its name: its rank or place in a mesh, its window, who wrote it and when."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_TRACE_IN_NAME = re.compile(
    r"(?:kineto|trace|(?<![a-z])e[tg]|profile|nsys|report|snapshot)[-_.]?(?:trace[-_.]?)?(\d{1,5})(?=\.|$)",
    re.IGNORECASE,
)
_NUMBER_IN_NAME = (
    re.compile(r"(?:^|[^a-z])(?:gpu|proc)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE),
    _TRACE_IN_NAME,
    re.compile(
        r"(?<!iteration)(?<!iter)(?<!step)[-_](\d{1,7})"
        r"(?=(?:\.pt)?(?:\.trace)?\.(?:json|sqlite|pickle|pkl|nsys-rep|qdrep))",
        re.IGNORECASE,
    ),
)
"""Patterns in order of how much they say; the last sees any number before the suffix that counts no steps."""

_PLACES = (
    re.compile(r"(?:^|_)dp(?P<dp>\d{1,6})_pp(?P<pp>\d{1,6})(?:_pcp\d+)?_tp(?P<tp>\d{1,6})(?!\d)"),
    re.compile(
        r"(?:^|-)TP-(?P<tp>\d{1,6})(?:-DP-(?P<dp>\d{1,6}))?(?:-PP-(?P<pp>\d{1,6}))?(?:-EP-\d{1,6})?"
        r"(?=-[A-Z_]+\.|-memory|\.)"
    ),
)
"""Names of vLLM (`dp0_pp0_tp1_dcp0_ep1_rank1`) and of SGLang (`<time>-TP-1-DP-0-PP-0-EP-1-DECODE`)."""

_WINDOW_IN_PATH = re.compile(r"(?:iteration|iter|step)[-_](\d{1,18})(?!\d)", re.IGNORECASE)
_WRITTEN = (
    re.compile(r"^(?P<worker>.*)\.(?P<time>\d{13,18}|[1-8]\d{18})(?P<stage>)\.pt\.trace\.json"),
    re.compile(
        r"^(?:.*-)?(?P<time>\d{10}(?:\.\d{1,9})?)-(?P<worker>TP-\d[-\dA-Z]*?)(?:-(?P<stage>[A-Z_]+))?(?=\.|-memory)"
    ),
)
"""Names of torch's `tensorboard_trace_handler` and of SGLang: who wrote the file, and when."""
_PROCESS = re.compile(r".+_(\d{1,7})")
_NS_DIGITS = 19


class Place(NamedTuple):
    """Where a rank stands in the mesh of a serving engine, as its file name says."""

    engine: str
    dp: int
    pp: int
    tp: int


class Written(NamedTuple):
    """Who wrote a file and when, as its name says."""

    worker: str
    """The process or rank, as the profiler named it."""
    time_ns: int
    """When the file was written, ns since the epoch."""
    stage: str
    """What was recorded, where an engine records several things apart, such as `DECODE`."""

    @property
    def is_process(self) -> bool:
        """Whether the worker is `host_pid`, which torch takes where it is given no other name."""
        return _PROCESS.fullmatch(self.worker) is not None and not says_rank(self.worker)


def rank_in_name(relative: str) -> int | None:
    """Return the rank that a file name carries, or None; without the word it may be another number."""
    name = PurePosixPath(relative).name
    found = (pattern.search(name) for pattern in (_RANK_IN_NAME, *_NUMBER_IN_NAME))
    return next((int(match[1]) for match in found if match), None)


def says_rank(relative: str) -> bool:
    """Whether a file name has the word beside the number, which cannot be that of a process then."""
    return _RANK_IN_NAME.search(PurePosixPath(relative).name) is not None


def numbers_trace(relative: str) -> bool:
    """Return whether the number in a name is that of a trace, as in `kineto_trace_3.json`."""
    return _TRACE_IN_NAME.search(PurePosixPath(relative).name) is not None


def place_in_name(relative: str) -> Place | None:
    """Return the place in a mesh that the name of a serving engine's file states, or None."""
    name = PurePosixPath(relative).name
    for engine, pattern in zip(("vllm", "sglang"), _PLACES, strict=True):
        if match := pattern.search(name):
            return Place(engine, *(int(match[axis] or 0) for axis in ("dp", "pp", "tp")))
    return None


def written(relative: str) -> Written | None:
    """Return who wrote a file and when, where its name says so."""
    name = PurePosixPath(relative).name
    match = next(filter(None, (pattern.match(name) for pattern in _WRITTEN)), None)
    if match is None:
        return None
    whole, _, part = match["time"].partition(".")
    digits = len(whole) if len(whole) > 10 else 10
    time_ns = int(whole) * 10 ** (_NS_DIGITS - digits) + (int(part.ljust(9, "0")) if part else 0)
    return Written(match["worker"], time_ns, match["stage"] or "")


def window_in_path(relative: str) -> int | None:
    """Return the number of the recording window (`iteration_<n>`) that a path carries, or None."""
    numbers = _WINDOW_IN_PATH.findall(relative)
    return int(numbers[-1]) if numbers else None
