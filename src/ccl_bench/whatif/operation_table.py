"""Tables of operations in the format of the OSDI'25 study: one row per operation, rank and step.

Columns: `dp_rank`, `stage`, `step`, `optype`, `start_ts` and `duration` in seconds, `seq_id`, `mc` (chunk of
the stage), `mb_id` (microbatch), `gmc` (chunk of the model). Source: "Understanding Stragglers in Large Model
Training Using What-if Analysis" (OSDI'25) and its artifact, ByteDance-Seed/StragglerAnalysis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.whatif.event_graph import NEVER, CyclicGraphError, EventGraph
from ccl_bench.whatif.schedule import COMPUTE, SHOWN, SYNCHRONISED, ScheduleError, TableOperation, depend

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from ccl_bench.result.step_choice import StepChoice
    from ccl_bench.whatif.event_graph import Numbers, Times

SUFFIXES = (".parquet", ".csv")

MOST_ROWS = 20_000_000
"""Largest number of rows; the replay of a larger table needs too much memory."""

ODD_S = -0.010
"""A transfer or delay of at most this, s, is a difference of clocks, and counts as 0."""

_TIMES, _KEY = ("start_ts", "duration"), ("stage", "optype", "seq_id", "mc", "mb_id", "gmc")
_NUMBERS = ("dp_rank", "stage", "step", "seq_id", "mc", "mb_id", "gmc")
_META_FIX = "correct the file, or remove it: then sizes come from the table"


@dataclass(frozen=True)
class OperationTable:
    """A run as operations: their graph, and the time of each operation in each step.

    Arrays over operations have one entry for each operation of a step; times are `[operation, step]`, s. Of n
    operations, number i has the events `2 i` (start) and `2 i + 1` (end); its time is value i of the graph,
    its delay value `n + i`, and value `2 n` is 0.
    """

    name: str
    steps: list[int]
    graph: EventGraph
    rank: NDArray[np.int64]
    """Data-parallel rank of each operation."""
    stage: NDArray[np.int64]
    operation: NDArray[np.str_]
    """Type of each operation, as in the table."""
    duration: Times
    """Time of computing, or of moving data since the last member of the meeting had started."""
    delay: Times
    """Time between the end of the causes of an operation and its start."""
    start: Times
    """When each operation started."""
    recorded_s: NDArray[np.float64]
    """Length of each step."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def shown_operation(self) -> NDArray[np.str_]:
        """Type of each operation with both ends of a message together."""
        return np.array([SHOWN.get(name, name) for name in self.operation])

    @property
    def is_compute(self) -> NDArray[np.bool_]:
        """Whether each operation computes."""
        return np.isin(self.operation, COMPUTE)


def is_operation_table(place: str) -> bool:
    """Whether a name is that of a table."""
    return place.lower().endswith(SUFFIXES)


def read_operation_table(place: str | Path, choice: StepChoice | None = None) -> OperationTable:
    """Return the operations of a table; other sizes come from `meta-NAME.yaml` in the same folder.

    Raises InputError if the file is not such a table, or its operations contradict each other.
    """
    path = storage.to_path(place)
    rows = _read(path)
    findings: list[Finding] = []
    shards = _shards(path, rows, findings)
    if choice:
        rows = rows.filter(pl.col("step").is_in([step for step in rows["step"].unique() if choice.has(step)]))
        if rows.is_empty():
            raise InputError(
                "has none of the chosen steps", where=str(path), fix="choose others with --steps"
            )
    rows = _whole_steps(rows, str(path), findings)
    ranks = rows["dp_rank"].unique().sort().to_list()
    template = rows.filter(dp_rank=ranks[0], step=rows["step"].min()).sort(
        "stage", "start_ts", maintain_order=True
    )
    if (
        template.height * len(ranks) * rows["step"].n_unique()
        != rows.join(template, on=_KEY, how="semi").height
    ):
        fix = "give a table in which every data-parallel rank has the same operations"
        raise InputError("has ranks with other operations than the first", where=str(path), fix=fix)
    operations = [TableOperation(number, **row) for number, row in enumerate(template.iter_rows(named=True))]
    try:
        waits = _waits(operations, len(ranks), synchronises=len(ranks) * shards > 1)
        table = _table(path.name, rows, template, ranks, waits, findings)
        table.graph.check_order()
        return table
    except (CyclicGraphError, ScheduleError) as error:
        raise InputError(
            str(error), where=str(path), fix="check the start times and numbers of its rows"
        ) from error


def _read(path: Path) -> pl.DataFrame:
    """Return the rows of a table with their types; raise InputError if a value does not fit its column."""
    where = str(path)
    try:
        size = path.stat().st_size
        lazy = pl.scan_csv(path) if path.suffix.lower() == ".csv" else pl.scan_parquet(path)
        if size == 0 or lazy.select(pl.len()).collect().item() > MOST_ROWS:
            problem = f"has more than {MOST_ROWS:,} rows" if size else "is empty"
            raise InputError(problem, where=where, fix="give a table of fewer steps")
        missing = [
            name for name in (*_NUMBERS, *_TIMES, "optype") if name not in lazy.collect_schema().names()
        ]
        if missing:
            fix = "give a table of operations; a directory of traces is a run"
            raise InputError(f"has no column {', '.join(missing)}", where=where, fix=fix)
        rows = lazy.select(*_NUMBERS, *_TIMES, "optype").collect()
    except OSError as error:
        raise storage.unreadable(path, error) from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"is not a table: {first}", where=where, fix="write it again") from error
    fix = "write it again; one row is one operation of one rank and step"
    try:
        typed = rows.with_columns(
            pl.col(_NUMBERS).cast(pl.Int64), pl.col(_TIMES).cast(pl.Float64), pl.col("optype").cast(pl.String)
        )
    except pl.exceptions.PolarsError as error:
        first = str(error).splitlines()[0]
        raise InputError(f"has a column of another type: {first}", where=where, fix=fix) from error
    odd = [name for name in typed.columns if typed[name].null_count()]
    odd += [name for name in _TIMES if not typed[name].is_finite().all()]
    odd += [] if odd or (typed["duration"] >= 0).all() else ["duration"]
    odd += [name for name in ("dp_rank", "stage") if not odd and (typed[name] < 0).any()]
    if odd or typed.is_empty():
        problem = f"has impossible values in {', '.join(dict.fromkeys(odd))}" if odd else "has no rows"
        raise InputError(problem, where=where, fix=fix)
    twice = typed.select("dp_rank", "step", *_KEY).is_duplicated().sum()
    if twice:
        raise InputError(f"states {twice} operations more than once", where=where, fix=fix)
    return typed


def _shards(path: Path, rows: pl.DataFrame, findings: list[Finding]) -> int:
    """Return the number of devices over which each data-parallel rank shards its weights; default 1."""
    from ccl_bench.card.yaml_tree import IssueLog, NotUnderstoodError, ScalarNode, whole_number, yaml_mapping
    from ccl_bench.storage.files import read_text

    beside = path.with_name(f"meta-{path.stem.rpartition('-')[2]}.yaml")
    if not beside.is_file():
        message = (
            f"there is no {beside.name}, so sizes come from the table, and unsharded weights are assumed"
        )
        findings.append(Finding("table-sizes-assumed", "note", message, path.name))
        return 1
    sizes: dict[str, int] = {}
    for entry in yaml_mapping(read_text(beside), IssueLog(str(beside))).entries:
        if isinstance(entry.node, ScalarNode) and entry.key in {"dp_size", "pp_size", "dsp_size"}:
            try:
                sizes[entry.key] = whole_number(entry.node, ())[0]
            except NotUnderstoodError as error:
                raise InputError(f"{entry.key}: {error}", where=str(beside), fix=_META_FIX) from error
    for name, column in (("dp_size", "dp_rank"), ("pp_size", "stage")):
        value_count = rows[column].n_unique()
        if sizes.get(name, value_count) != value_count:
            problem = f"states {name} {sizes[name]}, but the table holds {value_count} values of {column}"
            raise InputError(problem, where=str(beside), fix=_META_FIX)
    return sizes.get("dsp_size", 1)


def _whole_steps(rows: pl.DataFrame, where: str, findings: list[Finding]) -> pl.DataFrame:
    """Return the steps that have exactly the operations that most steps have."""
    steps = rows["step"].n_unique()
    usual = rows.group_by("dp_rank", *_KEY).len().filter(2 * pl.col("len") > steps)
    counts = (
        rows.join(usual, on=["dp_rank", *_KEY], how="left")
        .group_by("step")
        .agg(pl.len(), usual=pl.count("len"))
    )
    whole = counts.filter((pl.col("usual") == usual.height) & (pl.col("usual") == pl.col("len")))["step"]
    left_out = steps - len(whole)
    if left_out == steps:
        raise InputError("has no two steps with the same operations", where=where, fix="record more steps")
    if left_out:
        message = f"{left_out} of {steps} steps have other operations than the rest and are left out"
        findings.append(Finding("steps-left-out", "warning", message, count=left_out))
    return rows.filter(pl.col("step").is_in(whole.implode()))


def _waits(
    operations: list[TableOperation], ranks: int, *, synchronises: bool
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the meetings of operations, and the source and target of each dependency.

    They are those of one rank in one step, repeated for each rank.
    """
    dependencies, meeting = depend(operations)
    together = np.array([synchronises and each.optype in SYNCHRONISED for each in operations])
    rank = np.arange(ranks)
    meetings = np.where(together[:, None], meeting[:, None] * ranks, meeting[:, None] * ranks + rank)
    edges = np.array(dependencies, dtype=np.int64).reshape(-1, 2)[:, :, None] * ranks + rank
    _, meeting_of = np.unique(meetings.reshape(-1), return_inverse=True)
    return meeting_of, edges[:, 0].reshape(-1), edges[:, 1].reshape(-1)


def _table(
    name: str,
    rows: pl.DataFrame,
    template: pl.DataFrame,
    ranks: list[int],
    waits: tuple[Numbers, Numbers, Numbers],
    findings: list[Finding],
) -> OperationTable:
    """Return the table with its times laid out by operation and step."""
    order = template.select(*_KEY).with_row_index("number")
    rank_order = pl.DataFrame({"dp_rank": ranks}).with_row_index("place")
    placed = rows.join(order, on=_KEY).join(rank_order, on="dp_rank").sort("number", "place", "step")
    steps = placed["step"].unique().sort().to_list()
    meeting_of, earlier, later = waits
    shape = (len(meeting_of), len(steps))
    start = placed["start_ts"].to_numpy().reshape(shape)
    took = placed["duration"].to_numpy().reshape(shape)
    end = start + took
    operation = np.repeat(template["optype"].to_numpy(), len(ranks)).astype(np.str_)
    computes = np.isin(operation, COMPUTE)[:, None]
    arrived = np.full((meeting_of.max(initial=-1) + 1, len(steps)), NEVER)
    np.maximum.at(arrived, meeting_of, start)
    moved = end - arrived[meeting_of]
    ready = np.full_like(start, NEVER)
    np.maximum.at(ready, later, end[earlier])
    waited = start - ready
    # Of operation i the events `2 i` and `2 i + 1`, then one of each meeting; times as in the first step.
    size = len(meeting_of)
    meetings, numbers = len(arrived), np.arange(size)
    earliest = np.full(2 * size + meetings, NEVER)
    earliest[2 * np.setdiff1d(numbers, later)] = 0
    both = np.stack([start[:, 0], end[:, 0]], axis=1).reshape(-1)
    graph = EventGraph(
        chain=np.append(np.repeat(numbers, 2), size + np.arange(meetings)),
        value=np.full(2 * size + meetings, 2 * size),
        earliest=earliest,
        source=np.concatenate([2 * earlier + 1, 2 * numbers, 2 * size + meeting_of]),
        target=np.concatenate([2 * later, 2 * size + meeting_of, 2 * numbers + 1]),
        edge_value=np.concatenate([size + later, np.full(size, 2 * size), numbers]),
        recorded=np.append(both, arrived[:, 0]),
    )
    return OperationTable(
        name=name,
        steps=steps,
        graph=graph,
        rank=np.tile(np.array(ranks), template.height),
        stage=np.repeat(template["stage"].to_numpy(), len(ranks)),
        operation=operation,
        duration=np.where(computes, took, np.where(moved <= ODD_S, 0, moved)),
        delay=np.where((waited <= ODD_S) | np.isposinf(waited), 0, waited),
        start=start,
        recorded_s=end.max(axis=0) - start.min(axis=0),
        findings=findings,
    )
