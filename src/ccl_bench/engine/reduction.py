"""Read one trace and reduce it to the small tables that are wanted of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ccl_bench import analysis
from ccl_bench.analysis.derived import DERIVED, in_order, raw_needs
from ccl_bench.errors import InputError
from ccl_bench.findings import Finding
from ccl_bench.schema import TABLES
from ccl_bench.trace.reading import content_of

if TYPE_CHECKING:
    from ccl_bench.frames import pl
    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.discovery import TraceFile
    from ccl_bench.trace.formats import Format


_DEVICE_TABLES = {"kernels", "memcpy"}

_OF_EVERY_TRACE = {"identity", "findings"}
"""Raw tables that no format fills, because they are about the trace itself."""


@dataclass(frozen=True, slots=True)
class Task:
    """One trace and the tables that are wanted of it, raw or derived from it alone."""

    trace: TraceFile
    wanted: tuple[str, ...]
    use_cache: bool = True


@dataclass(slots=True)
class Reduced:
    """What one trace came to."""

    trace: TraceFile
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    sha256: str = ""
    rank: int | None = None
    """Rank as the whole file says, else as its name or a map says."""
    world_size: int | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    on_device: bool | None = None
    """Whether the trace holds work of a device; None where nothing that is wanted depends on it."""


def local_needs(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tables of single traces that `wanted` tables come down to."""
    analysis.load()
    needed: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in TABLES:
            needed[name] = None
        elif name in DERIVED:
            table = DERIVED.get(name)
            if not table.across_ranks:
                needed[name] = None
            else:
                for need in table.needs:
                    visit(need)

    for name in wanted:
        visit(name)
    return tuple(needed)


def takes_part(form: Format, table: str) -> bool:
    """Whether traces of a format have a say in a table: they fill one of the raw tables behind it."""
    raw = raw_needs([table]) - _OF_EVERY_TRACE
    return not raw or not raw.isdisjoint(form.tables)


def reduced(task: Task) -> Reduced:
    """Return those wanted tables of one trace that it has a say in; without any it is not read.

    A trace that cannot be read gives a finding instead.
    """
    analysis.load()
    wanted = tuple(name for name in task.wanted if takes_part(task.trace.form, name))
    if not wanted:
        return Reduced(task.trace, rank=task.trace.rank, world_size=task.trace.world_size)
    raw = raw_needs(wanted)
    try:
        content, sha256 = content_of(task.trace, raw, use_cache=task.use_cache)
    except InputError as error:
        finding = Finding(
            "trace-unreadable", "error", error.message, task.trace.relative, rank=task.trace.rank
        )
        return Reduced(task.trace, findings=[_about(finding, task.trace.form)], rank=task.trace.rank)
    rank, conflict = _identified(task.trace, content)
    world_size = content.world_size if content.world_size is not None else task.trace.world_size
    content.tables["identity"] = TABLES["identity"].frame({"rank": [rank], "world_size": [world_size]})
    return Reduced(
        task.trace,
        _tables(wanted, content),
        [*(_about(finding, task.trace.form) for finding in content.findings), *conflict],
        sha256,
        rank,
        world_size,
        content.attributes,
        any(content.table(name).height for name in _DEVICE_TABLES) if raw >= _DEVICE_TABLES else None,
    )


def _about(finding: Finding, form: Format) -> Finding:
    """Return a finding about a whole trace as one about what its format fills: others are not concerned."""
    return finding if finding.touches else replace(finding, touches=tuple(sorted(form.tables)))


def _tables(wanted: tuple[str, ...], content: TraceContent) -> dict[str, pl.DataFrame]:
    tables = {name: content.table(name) for name in raw_needs(wanted)}
    for name in in_order(wanted):
        table = DERIVED.get(name)
        tables[name] = table.compute(*(tables[need] for need in table.needs))
    return {name: tables[name] for name in wanted}


def _identified(trace: TraceFile, content: TraceContent) -> tuple[int | None, list[Finding]]:
    """Return the rank of a trace once the whole file is known; the file itself has the last word."""
    if content.rank is None or content.rank == trace.rank:
        return trace.rank, []
    if trace.rank is None:
        return content.rank, []
    message = (
        f"the file says rank {content.rank}, its {trace.rank_source} says {trace.rank}; the file is believed"
    )
    return content.rank, [Finding("rank-conflict", "warning", message, trace.relative, rank=content.rank)]
