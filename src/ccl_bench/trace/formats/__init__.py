"""Trace formats: the definition of a format, recognition by the first bytes of a file, and the registry.

Each format is a package here; other packages add theirs by an entry point.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ccl_bench.base.foreign import call_contained, is_foreign, reason_of
from ccl_bench.base.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent


@dataclass(frozen=True, slots=True)
class Identity:
    """Rank and world size that the first bytes of a trace state."""

    rank: int | None = None
    world_size: int | None = None
    recording: str = ""
    """What files have in common that are one recording in several forms; empty if a form has no other."""


Recogniser = Callable[[bytes], bool]
"""Whether a file that begins with these bytes is of a format."""


def holds(*texts: bytes) -> Recogniser:
    """Recognise files whose first bytes contain each of these texts."""
    return partial(_holds, texts)


def begins(pattern: bytes) -> Recogniser:
    """Recognise files whose beginning matches a regular expression; a dot is any byte."""
    return partial(_begins, pattern)


def shows(pattern: bytes) -> Recogniser:
    """Recognise files whose first bytes contain a match of a regular expression."""
    return partial(_shows, pattern)


def all_of(*recognisers: Recogniser) -> Recogniser:
    """Recognise what each of several recognisers does; later ones are only asked after the earlier agreed."""
    return partial(_all, recognisers)


def any_of(*recognisers: Recogniser) -> Recogniser:
    """Recognise what one of several recognisers does."""
    return partial(_any, recognisers)


def none_of(*recognisers: Recogniser) -> Recogniser:
    """Recognise what none of several recognisers does."""
    return partial(_none, recognisers)


# Formats travel to other processes with the traces, which functions inside of functions cannot.
def _holds(texts: tuple[bytes, ...], head: bytes) -> bool:
    return all(text in head for text in texts)


def _begins(pattern: bytes, head: bytes) -> bool:
    return re.match(pattern, head, re.DOTALL) is not None


def _shows(pattern: bytes, head: bytes) -> bool:
    return re.search(pattern, head) is not None


def _all(recognisers: tuple[Recogniser, ...], head: bytes) -> bool:
    return all(recognises(head) for recognises in recognisers)


def _any(recognisers: tuple[Recogniser, ...], head: bytes) -> bool:
    return any(recognises(head) for recognises in recognisers)


def _none(recognisers: tuple[Recogniser, ...], head: bytes) -> bool:
    return not _any(recognisers, head)


def _unknown(head: bytes) -> Identity:  # noqa: ARG001 (called as those are that look)
    return Identity()


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class TracePart:
    """One of several traces in a file, such as a process of a report."""

    id: str
    """What selects it; empty if the file holds no other."""
    identity: Identity
    """What the file says of where the part is from."""
    local_rank: int | None = None
    """Place in the order of devices, where every part has one device of its own."""


@dataclass(frozen=True, slots=True)
class InParts:
    """How to read a format whose files contain several traces and are no streams."""

    parts: Callable[[Path], list[TracePart]]
    """Which traces a file holds; an empty list where none."""
    read: Callable[[Path, str, str], TraceContent]
    """Read one part of the file at a path; the texts name the file in messages, and the part."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of trace file and how it becomes tables."""

    name: str
    """Name in messages and results, such as `kineto`."""
    profile: str
    """Profile mode that the files belong to, `torch` or `nsys`; any other name belongs to every mode."""
    revision: int
    """Increased when the same file would give other tables, so that cached ones are not used."""
    tables: frozenset[str]
    """Raw tables that the format can fill; a trace takes part in what is computed from one of them."""
    recognises: Recogniser = field(compare=False)
    """Whether a file that begins with these bytes is of this format."""
    identity: Callable[[bytes], Identity] = _unknown
    """What these first bytes say of rank and world size; by default nothing."""
    read: Callable[[BinaryIO, str], TraceContent] | None = None
    """Read a whole file; the text names it in messages. None for a format that is read in parts."""
    in_parts: InParts | None = None
    """For a format whose files hold several traces."""
    suffixes: tuple[str, ...] = (".json", ".json.gz")
    """How the names of its files end. Files with the suffix of any format are read; their content decides."""
    exports: tuple[tuple[str, str], ...] = ()
    """Suffix of a file, and of its export that is read in its place where both are there."""
    recorder: str = ""
    """Who writes such files, in messages: `torch's profiler`."""
    step_marker: str = ""
    """Regular expression for the names of ranges that are steps in every file of this format, with the number
    as its first group; empty if steps are marked as PyTorch's tools mark them."""
    advice: str = ""
    """How to record what a number lacks; empty for the metrics' own advice, about torch.profiler."""
    of_rank: bool = True
    """Whether a file is of one rank; what is of the whole job has none, whatever its name holds."""
    ends_in_rank: bool = False
    """Whether the last number in the name of a file is its rank, whatever precedes it."""
    may_be_alike: bool = False
    """Whether files of several ranks are the same bytes where the ranks do the same."""
    reads_in_threads: Callable[[], bool] = _never
    """Whether `read` mostly lets other threads run, so that several files need no processes of their own."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One trace of a run: a file of one rank in one recording window."""

    path: Path
    relative: str
    """Path below the run, with `/`."""
    form: Format
    rank: int | None
    """Rank, or None if neither file, map nor name states it."""
    rank_source: str
    """`file`, `map`, `name`, `device` or `unknown`."""
    iteration: int | None
    """Number of the recording window, where the path carries one or the names carry times of several."""
    world_size: int | None
    """Number of ranks that the file says the job had."""
    size: int
    """Size on disk, bytes."""
    part: str = ""
    """Which trace of a file that holds several; empty if it holds one."""
    recording: str = ""
    """What files of one rank have in common that are one recording in several forms."""


__all__ = [
    "FORMATS",
    "GROUP",
    "Format",
    "Identity",
    "InParts",
    "TracePart",
    "all_of",
    "any_of",
    "begins",
    "holds",
    "load",
    "none_of",
    "recognised",
    "register",
    "shows",
    "suffixes",
]

GROUP = "ccl_bench.formats"


FORMATS: Registry[Format] = Registry("trace format", GROUP, "ccl_bench.trace.formats")


def register(form: Format) -> Format:
    """Make a format known."""
    FORMATS.add(form.name, form)
    return form


def load() -> Registry[Format]:
    """Import every format of this package and of plug-ins, and return the registry."""
    return FORMATS.load()


def recognised(head: bytes) -> Format | None:
    """Return the format of a file that begins with `head`, or None."""
    return next((form for form in load() if _recognises(form, head)), None)


def _recognises(form: Format, head: bytes) -> bool:
    try:
        return bool(call_contained(form.recognises, head))
    except Exception as error:
        note_failure(form, form.recognises, error)
        return False


def identified(form: Format, head: bytes) -> Identity:
    """Return what the first bytes of a file say of its rank; nothing if a plug-in cannot."""
    try:
        identity = call_contained(form.identity, head)
        if is_foreign(form.identity) and not isinstance(identity, Identity):
            raise TypeError(f"identity returned {type(identity).__name__}, and not Identity")
    except Exception as error:
        note_failure(form, form.identity, error)
        return Identity()
    return identity


def note_failure(form: Format, function: Callable[..., object], error: Exception) -> None:
    """Remember that a format of a plug-in failed; raise the error of any other, which is a mistake here."""
    if not is_foreign(function):
        raise error
    FORMATS.broken[f"{function.__module__}: {form.name}"] = reason_of(error)


def suffixes() -> tuple[str, ...]:
    """Return the suffixes of trace files of all formats."""
    return tuple(dict.fromkeys(suffix for form in load() for suffix in form.suffixes))
