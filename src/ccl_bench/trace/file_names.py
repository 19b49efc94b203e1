"""File names of traces: the rank, the place in a mesh and the recording window that they state."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from operator import mul
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.findings import Finding
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from ccl_bench.trace.formats import TraceFile

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_TRACE_IN_NAME = re.compile(
    r"(?:kineto|trace|(?<![a-z])e[tg]|profile|nsys|report|snapshot)[-_.]?(?:trace[-_.]?)?(\d{1,5})"
    r"(?=\.(?!\d{1,4}\.)|$)",
    re.IGNORECASE,
)
_NUMBER_IN_NAME = (
    re.compile(r"(?:^|[^a-z])(?:gpu|proc)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE),
    _TRACE_IN_NAME,
)
"""Patterns in order of how much they say."""

_PLACES = (
    re.compile(r"(?:^|_)dp(?P<dp>\d{1,6})_pp(?P<pp>\d{1,6})(?:_pcp\d+)?_tp(?P<tp>\d{1,6})(?!\d)"),
    re.compile(
        r"(?:^|-)TP-(?P<tp>\d{1,6})(?:-DP-(?P<dp>\d{1,6}))?(?:-PP-(?P<pp>\d{1,6}))?(?:-EP-\d{1,6})?"
        r"(?=-[A-Z_]+\.|-memory|\.)"
    ),
)
"""Names of vLLM (`dp0_pp0_tp1_dcp0_ep1_rank1`) and of SGLang (`<time>-TP-1-DP-0-PP-0-EP-1-DECODE`)."""

_LINKED_IN_PATH = re.compile(r"link|plus|merged|host_device", re.IGNORECASE)
"""What names of the output of `chakra_trace_link` have in common: `et_plus`, `linked`, `host_device`."""

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


class MeshPlace(NamedTuple):
    """Position of a rank in the mesh of a serving engine, as its file name says."""

    engine: str
    dp: int
    pp: int
    tp: int


class Written(NamedTuple):
    """Writer and time of a file, as its name says."""

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


@cache
def _number_before(suffixes: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of any number before the suffix that counts no steps, and no parts of a second."""
    ends = "|".join(re.escape(suffix) for suffix in suffixes if suffix.startswith("."))
    number = r"(?<!iteration)(?<!iter)(?<!step)(?:[-_]|(?<!\d{8})\.)(\d{1,7})"
    return re.compile(rf"{number}(?=(?:\.pt)?(?:\.trace)?(?:{ends}))", re.IGNORECASE)


def rank_in_name(relative: str) -> int | None:
    """Return the rank that a file name carries, or None; without the word it may be another number."""
    match = _rank_match(PurePosixPath(relative).name)
    return int(match[1]) if match else None


def _rank_match(name: str) -> re.Match[str] | None:
    patterns = (_RANK_IN_NAME, *_NUMBER_IN_NAME, _number_before(formats.suffixes()))
    return next(filter(None, (pattern.search(name) for pattern in patterns)), None)


_VARYING = re.compile(r"\b(?:iteration|iter|step)[-_]\d+|\d{10,}|\.gz$", re.IGNORECASE)
"""What differs between the files of one node: the window, and the time of writing."""


def place_of_rank(relative: str) -> str | None:
    """Return a path without the numbers of rank, window and time, which ranks of one node have in common.

    None if the name carries no rank.
    """
    path = PurePosixPath(relative)
    match = _rank_match(path.name)
    if match is None:
        return None
    name = f"{path.name[: match.start(1)]}*{path.name[match.end(1) :]}"
    return _VARYING.sub("*", str(path.with_name(name)))


_LAST_RANK = re.compile(r".*rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<!\d)(\d{1,7})$")
_SUFFIX = re.compile(r"\.(?:json|pickle|pkl)(?:\.gz)?$", re.IGNORECASE)


def rank_at_end(relative: str) -> int | None:
    """Return the rank in a name that ends in it: hosts and processes may be named before it."""
    name = _SUFFIX.sub("", PurePosixPath(relative).name)
    match = _LAST_RANK.match(name) or _LAST_NUMBER.search(name)
    return int(match[1]) if match else None


def says_rank(relative: str) -> bool:
    """Whether a file name has the word beside the number, which cannot be that of a process then."""
    return _RANK_IN_NAME.search(PurePosixPath(relative).name) is not None


def numbers_trace(relative: str) -> bool:
    """Return whether the number in a name is that of a trace, as in `kineto_trace_3.json`."""
    return _TRACE_IN_NAME.search(PurePosixPath(relative).name) is not None


def is_linked(trace: TraceFile) -> bool:
    """Whether a trace is an Execution Trace to which a tool has added the times of a Kineto trace."""
    return trace.form.name == "execution_trace" and _LINKED_IN_PATH.search(trace.relative) is not None


def place_in_name(relative: str) -> MeshPlace | None:
    """Return the place in a mesh that the name of a serving engine's file states, or None."""
    name = PurePosixPath(relative).name
    for engine, pattern in zip(("vllm", "sglang"), _PLACES, strict=True):
        if match := pattern.search(name):
            return MeshPlace(engine, *(int(match[axis] or 0) for axis in ("dp", "pp", "tp")))
    return None


def writer_in_name(relative: str) -> Written | None:
    """Return the writer and time of a file, where its name states them."""
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


_NUMBER = re.compile(r"\d+")

_SHOWN = 3
"""Files that a message names."""

LARGEST_JOB = 1 << 14
"""Numbers of traces from here on are no ranks of a job of unknown size."""


def assign_ranks_and_windows(traces: Sequence[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces with the ranks and windows that their names can mean, and findings on the others."""
    with_ranks, findings = _with_plausible_ranks(_change_each_format(traces, _with_mesh_ranks))
    return _change_each_format(with_ranks, _in_windows), findings


def _change_each_format(
    traces: Iterable[TraceFile], change: Callable[[list[TraceFile]], list[TraceFile]]
) -> list[TraceFile]:
    """Return the traces with a change made to those of each format; their order may be another."""
    groups: dict[str, list[TraceFile]] = defaultdict(list)
    for trace in traces:
        groups[trace.form.name].append(trace)
    return [new_trace for group in groups.values() for new_trace in change(group)]


def _without_rank(trace: TraceFile) -> TraceFile:
    return replace(trace, rank=None, rank_source="unknown")


def _with_mesh_ranks(traces: list[TraceFile]) -> list[TraceFile]:
    """Return traces of one format with the ranks of those that name a place in the mesh of a serving engine.

    vLLM numbers ranks by data-parallel replica, pipeline stage and tensor-parallel rank; SGLang by the last
    two, since attention is split over data within a tensor-parallel group. The sizes of the mesh are known
    where every place of it has a trace.
    """
    unranked = [trace for trace in traces if trace.rank_source in {"name", "unknown"} and trace.form.of_rank]
    places = {t.relative: place for t in unranked if (place := place_in_name(t.relative))}
    axes = {p: (p.pp, p.tp) if p.engine == "sglang" else (p.dp, p.pp, p.tp) for p in places.values()}
    distinct = {*axes.values()}
    ranks: dict[MeshPlace, int] = {}
    if len({place.engine for place in axes}) == 1 and len(distinct) == len(axes):
        sizes = [1 + max(column) for column in zip(*distinct, strict=True)]
        if max(sizes[:-1]) == 1 or len(distinct) == math.prod(sizes):
            strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
            ranks = {place: sum(map(mul, at, strides)) for place, at in axes.items()}
    ranked = []
    for trace in traces:
        place = places.get(trace.relative)
        if place in ranks:
            ranked.append(replace(trace, rank=ranks[place], rank_source="name"))
        # vLLM's own number in the name is that within the replica
        elif place is None or (place.dp == 0 and says_rank(trace.relative)):
            ranked.append(trace)
        else:
            ranked.append(_without_rank(trace))
    return ranked


def _with_plausible_ranks(traces: list[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces without ranks that their names cannot mean, and findings on those.

    A number without the word beside it is a rank where it, and all in names of the same make, are below
    the number of ranks or, where that is not known, of traces; others count processes, ports or attempts.
    The number of a trace (`kineto_trace_3.json`) may be that of a rank whose peers' traces are absent. It is
    then a rank in other names too (`linked.3.json`).
    The name of the only trace of a job that states no peers (`model-7.json`) is not expected to state a rank,
    so that its number is no finding.
    """
    world_size = max((t.world_size for t in traces if t.world_size is not None), default=0)
    known_ranks = {t.rank for t in traces if t.rank_source in {"file", "map"} or _is_numbered(t)}
    by_pattern: dict[tuple[str, str], list[TraceFile]] = defaultdict(list)
    for trace in traces:
        if trace.rank_source == "name" and not says_rank(trace.relative):
            by_pattern[trace.form.name, _NUMBER.sub("0", trace.path.name)].append(trace)
    implausible: list[TraceFile] = []
    alone: list[TraceFile] = []
    for (form, _), group in by_pattern.items():
        present = sum(t.form.name == form for t in traces)
        is_numbered = all(map(_is_numbered, group))
        limit = world_size or max(present, LARGEST_JOB if is_numbered else 0)
        if any((t.rank or 0) >= limit and t.rank not in known_ranks for t in group):
            (alone if present == 1 and world_size <= 1 else implausible).extend(group)
    not_ranks = {t.relative for t in (*implausible, *alone)}
    plausible = [_without_rank(t) if t.relative in not_ranks else t for t in traces]
    if not implausible:
        return plausible, []
    count = len(implausible)
    files = ", ".join(t.relative for t in implausible[:_SHOWN]) + (", ..." if count > _SHOWN else "")
    message = f"the numbers in {files} are not ranks: they are not below the number of ranks or traces"
    return plausible, [Finding("rank-implausible", "warning", message, implausible[0].relative, count=count)]


def _is_numbered(trace: TraceFile) -> bool:
    """Whether a name states the number of a rank or of a trace, of a job of any size."""
    named = trace.form.ends_in_rank or numbers_trace(trace.relative) or says_rank(trace.relative)
    return named and trace.rank is not None and trace.rank < LARGEST_JOB


def _in_windows(traces: list[TraceFile]) -> list[TraceFile]:
    """Return traces of one format, those whose names carry a time with the number of their window."""
    timed_files = [(w, t) for t in traces if t.iteration is None and (w := writer_in_name(t.relative))]
    timed_files.sort(key=lambda file: (file[0].time_ns, file[0].stage, file[1].relative))
    windows = windows_in_time(
        [
            (name.time_ns, (str(t.path.parent), name.worker) if t.rank is None else t.rank)
            for name, t in timed_files
        ]
    )
    if not windows or windows[-1] == 1:
        return traces
    numbers = {trace.relative: number for (_, trace), number in zip(timed_files, windows, strict=True)}
    return [replace(t, iteration=numbers.get(t.relative, t.iteration)) for t in traces]


def windows_in_time(files: Sequence[tuple[int, Hashable]]) -> list[int]:
    """Return the recording window, from 1, of each file, given in order as its time in ns and its writer.

    Each rank writes its file at a time of its own, so the times alone make no windows: a window ends where
    a rank writes again, or where the pause is longer than half of the shortest one between files of a rank.
    """
    times: dict[Hashable, list[int]] = defaultdict(list)
    for time_ns, writer in files:
        times[writer].append(time_ns)
    pauses = (later - earlier for of_writer in times.values() for earlier, later in pairwise(of_writer))
    pause = min((pause for pause in pauses if pause > 0), default=0) / 2
    numbers: list[int] = []
    seen: set[Hashable] = set()
    last_ns: int | None = None
    number = 1
    for time_ns, writer in files:
        if last_ns is not None and (writer in seen or 0 < pause < time_ns - last_ns):
            number, seen = number + 1, set()
        numbers.append(number)
        seen.add(writer)
        last_ns = time_ns
    return numbers
