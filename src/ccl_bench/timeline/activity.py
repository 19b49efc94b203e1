"""Activity of ranks as slices: work, waiting, lost time, and the critical path."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.calls import UNKNOWN, WAITING, exposed_pieces
from ccl_bench.analysis.communication.matching import point_to_point
from ccl_bench.analysis.communication.stragglers import (
    attributable_waits,
    find_stragglers,
    in_steps_of,
    late_steps,
)
from ccl_bench.analysis.device.work import COMPUTING
from ccl_bench.analysis.device.work import MEMORY as COPYING
from ccl_bench.analysis.intervals import clip, subtract
from ccl_bench.analysis.pipeline import moving, with_transfer
from ccl_bench.base.errors import NoValue
from ccl_bench.base.lazy_imports import pl
from ccl_bench.timeline.slices import (
    BUBBLE,
    COMMUNICATION,
    COMPUTE,
    CRITICAL,
    DEVICE_STEP,
    EXPOSED,
    LATE,
    MEMORY,
    STEP,
    WAIT,
    slices,
)
from ccl_bench.whatif.answer import replay_recorded
from ccl_bench.whatif.critical_path import UNEXPLAINED, find_paths
from ccl_bench.whatif.run_graph import graph_of
from ccl_bench.whatif.run_replays import RunReplays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.evaluate.load import LoadedRun
    from ccl_bench.run import Run
    from ccl_bench.whatif.critical_path import PathSegment

ACTIVITY_TABLES = ("steps", "device_work", "memcpy", "work", "calls", "cpu_ops")
"""Tables that the activity of a trace needs."""

LONGEST_NAME = 120
"""Longest name; template arguments of kernels can have thousands of characters."""


def activity_slices(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the slices of all work of one rank, and of its steps as recorded and on the device.

    Copies and sets that carry out communication are left out. On a run without a device the computation is
    that of the CPU, with the names of the operators.
    """
    steps, calls, device_work = tables["steps"], tables["calls"], tables["device_work"]
    step_name = pl.format("step {}", pl.col("step"))
    on_device = steps.select("step", start_ns="device_start_ns", end_ns="device_end_ns")
    size = pl.when(pl.col("size_bytes").is_not_null()).then(pl.format(',"bytes":{}', "size_bytes"))
    call_args = pl.concat_str(pl.format('"collective":"{}"', pl.col("collective")), size.fill_null(""))
    parts = [
        slices(steps, STEP, name=step_name),
        slices(on_device, DEVICE_STEP, name=step_name),
        slices(calls, COMMUNICATION, name=shortened("name"), args=call_args),
    ]
    if device_work.height:
        computing = device_work.filter("is_kernel", pl.col("kind").is_in(COMPUTING))
        place = ["start_ns", "end_ns", "stream", "correlation"]
        copy_places = device_work.filter(pl.col("kind") == COPYING).select(place).unique()
        copies = tables["memcpy"].join(
            copy_places, on=place, how="semi", nulls_equal=True, maintain_order="left"
        )
        copy_args = pl.when(pl.col("bytes").is_not_null()).then(pl.format('"bytes":{}', "bytes"))
        parts += [
            slices(computing, COMPUTE, name=shortened("name")),
            slices(copies, MEMORY, name=pl.col("kind"), args=copy_args),
        ]
    else:
        place = ["start_ns", "end_ns", "stream"]
        names = tables["cpu_ops"].select("name", "start_ns", "end_ns", stream="thread")
        names = names.unique(place, keep="last", maintain_order=True)
        computed = (
            tables["work"].filter(pl.col("kind").is_in(COMPUTING)).select("start_ns", "end_ns", "stream")
        )
        with_names = computed.join(names, on=place, how="left", nulls_equal=True, maintain_order="left")
        parts.append(slices(with_names, COMPUTE, name=shortened("name")))
    return pl.concat(parts)


def shortened(column: str) -> pl.Expr:
    """Return a name of at most `LONGEST_NAME` characters."""
    text = pl.col(column).cast(pl.String)
    is_long = text.str.len_chars() > LONGEST_NAME
    return pl.when(is_long).then(text.str.head(LONGEST_NAME) + "...").otherwise(text)


EXPOSURE_TABLES = ("call_stretches",)
"""Additional tables that exposed communication needs."""

PIPELINE_TABLES = ("exposed_messages", "stage_parts")
"""Additional tables that bubbles need."""


def exposed_slices(tables: Mapping[str, pl.DataFrame], call_parts: pl.DataFrame, trace: int) -> pl.DataFrame:
    """Return the intervals of exposed communication in steps, with waiting separate."""
    stretches = tables["call_stretches"].with_columns(trace=pl.lit(trace, dtype=pl.Int64))
    pieces = exposed_pieces(stretches, call_parts)
    name = pl.concat_str("collective", "part", separator=", ")
    return slices(pieces, EXPOSED, name=name, category=pl.lit(f"{EXPOSED} ") + pl.col("part"))


def bubble_slices(tables: Mapping[str, pl.DataFrame], messages: pl.DataFrame, trace: int) -> pl.DataFrame:
    """Return the intervals of steps in which a pipeline stage neither computed nor moved data."""
    calls = tables["calls"].filter(~pl.col("collective").is_in(point_to_point()))
    stretches = tables["exposed_messages"].with_columns(trace=pl.lit(trace, dtype=pl.Int64))
    moving_messages = moving(with_transfer(stretches, messages))
    compute = tables["work"].filter(pl.col("kind").is_in(COMPUTING))
    busy = pl.concat([table.select("start_ns", "end_ns") for table in (compute, calls, moving_messages)])
    parts = tables["stage_parts"]
    windows = parts.select("start_ns", "end_ns")
    gaps = clip(subtract(windows, busy), windows)
    place = parts.select("step", "part")[gaps["window"]]
    return slices(gaps.hstack(place), BUBBLE, name=pl.lit("bubble, ") + pl.col("part"))


UNCOUNTED = "wait, not counted"
OF_MESSAGE = "wait, of a message"

_KEY = ("iteration", "group", "number")


def shown_waits(
    matched: pl.DataFrame, call_parts: pl.DataFrame, offsets_ns: Mapping[int, int]
) -> pl.DataFrame:
    """Return the members of collectives with known waiting, with the columns that slices need.

    Columns in addition to those of `matched`: `rest`, whether transfer or unknown time follows the wait;
    `counts`, whether the wait is in the metrics; `last` and `longest_ns` if it is; `offset_ns` of the
    trace's clock; `flow`, the collective, and the `role` in it.
    """
    later_parts = call_parts.filter(pl.col("part") != WAITING).select("trace", "call", rest="part")
    members = matched.drop_nulls("wait_ns").join(
        later_parts, on=["trace", "call"], how="left", maintain_order="left"
    )
    waiting_members = members.with_columns(pl.col("rest").fill_null(UNKNOWN))
    marks = attributable_waits(matched).select(
        *_KEY, "trace", "last", "longest_ns", counts=pl.lit(value=True)
    )
    joined = waiting_members.join(
        marks, on=[*_KEY, "trace"], how="left", nulls_equal=True, maintain_order="left"
    )
    offset = pl.col("trace").replace_strict(dict(offsets_ns), default=0, return_dtype=pl.Int64)
    with_offsets = joined.with_columns(
        pl.col("counts", "last").fill_null(value=False),
        offset.alias("offset_ns"),
        pl.struct(_KEY).rank("dense").cast(pl.Int64).alias("flow"),
    )
    moves = pl.col("start_ns") + pl.col("wait_ns") - pl.col("offset_ns")
    order = moves.rank("ordinal").over("flow")
    role = pl.when(order == 1).then(pl.lit("s")).when(order == pl.len().over("flow")).then(pl.lit("f"))
    return with_offsets.with_columns(role.otherwise(pl.lit("t")).alias("role"))


def wait_slices(members: pl.DataFrame) -> pl.DataFrame:
    """Return the slices of one trace's members of collectives: waiting, then transfer."""
    kind = pl.concat_str("collective", "dimension", separator=" ", ignore_nulls=True)
    category = pl.when("counts").then(pl.lit(WAIT)).otherwise(pl.lit(UNCOUNTED))
    waits = members.filter(pl.col("wait_ns") > 0).with_columns(end_ns=pl.col("start_ns") + pl.col("wait_ns"))
    transfers = members.with_columns(start_ns=pl.col("start_ns") + pl.col("wait_ns"))
    late_members = members.filter(pl.col("last") & (pl.col("longest_ns") > 0)).with_columns(
        start_ns=pl.col("start_ns") - pl.col("longest_ns"), end_ns=pl.col("start_ns")
    )
    no_value = pl.lit(None)
    return pl.concat(
        [
            slices(
                waits, WAIT, name=pl.lit("wait in ") + kind, category=category, flow=no_value, role=no_value
            ),
            slices(transfers, WAIT, name=_rest_of(kind, "rest"), category=pl.col("rest")),
            slices(late_members, LATE, name=pl.lit("late to ") + kind, flow=no_value, role=no_value),
        ]
    )


def _rest_of(kind: pl.Expr, part: str) -> pl.Expr:
    """Return the name of the slice of a call that is transfer or unknown."""
    return pl.format("{} in {}", pl.col(part), kind)


def other_slices(call_parts: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return the slices of one trace's other calls: messages and unknown ones."""
    other_calls = call_parts.join(members, on=["trace", "call"], how="anti", maintain_order="left")
    kind = pl.concat_str("collective", "dimension", separator=" ", ignore_nulls=True)
    waits = pl.col("part") == WAITING
    name = pl.when(waits).then(pl.lit("wait in ") + kind).otherwise(_rest_of(kind, "part"))
    category = pl.when(waits).then(pl.lit(OF_MESSAGE)).otherwise("part")
    why = pl.format('"because":"{}"', pl.col("reason"))
    return slices(other_calls, WAIT, name=name, category=category, args=why)


def ranks_waiting(members: pl.DataFrame) -> pl.DataFrame:
    """Return the number of waiting members from each moment `at_ns` of the common clock on."""
    waits = members.filter(pl.col("wait_ns") > 0).with_columns(pl.col("start_ns") - pl.col("offset_ns"))
    changes = pl.concat(
        [
            waits.select(at_ns="start_ns", change=pl.lit(1, dtype=pl.Int64)),
            waits.select(at_ns=pl.col("start_ns") + pl.col("wait_ns"), change=pl.lit(-1, dtype=pl.Int64)),
        ]
    )
    levels = changes.group_by("at_ns").agg(pl.col("change").sum()).sort("at_ns").filter(pl.col("change") != 0)
    return levels.select("at_ns", pl.col("change").cum_sum().alias("waiting"))


def overall_slices(
    steps: pl.DataFrame, waits: pl.DataFrame, breakdown: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """Return the steps from the first rank's start to the last rank's end, and the straggler in late steps.

    The straggler is the `slowest_rank` of the metric. `steps` are on the common clock.
    """
    spans = steps.group_by("iteration", "step").agg(pl.col("start_ns").min(), pl.col("device_end_ns").max())
    spans = spans.rename({"device_end_ns": "end_ns"}).sort("start_ns")
    drawn = [slices(spans, STEP, name=pl.format("step {}", pl.col("step")))]
    waits = in_steps_of(waits, steps)
    stragglers = None if waits.is_empty() else find_stragglers(waits, steps, breakdown, facts)
    if stragglers is None or stragglers.slowest is None:
        return pl.concat(drawn)
    at = ["iteration", "step"]
    of_slowest = waits.filter(pl.col("rank") == stragglers.slowest)
    costs = of_slowest.group_by(at).agg(pl.col("caused_ns").sum())
    for table in (
        late_steps(stragglers.waits, stragglers.slowest, stragglers.floor_ns).filter("is_late"),
        costs,
    ):
        spans = spans.join(table, on=at, nulls_equal=True, maintain_order="left")
    cost = pl.format('"caused_wait_ns":{}', pl.col("caused_ns"))
    return pl.concat([*drawn, slices(spans, LATE, name=pl.lit(f"rank {stragglers.slowest}"), args=cost)])


FIRST_FLOW = 1 << 40
"""First number of the arrows of steps; those of collectives are smaller."""

ALL_RANKS = f"{CRITICAL} of all ranks"
"""Category of the path as one track; the segments on the tracks of ranks have that of the track."""

_COLUMNS = {"trace": pl.Int64, "step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}


def critical_slices(run: Run, loaded: LoadedRun) -> tuple[pl.DataFrame, str]:
    """Return the slices of the path with their `trace`, on its own clock, and why there are none, or "".

    `loaded` holds the tables of the graph. If the graph does not explain the run, there are no slices.
    """
    try:
        replays = RunReplays(graph_of(run, loaded))
        replay_recorded(replays)
        paths = find_paths(replays.graph, replays.path_events())
    except NoValue as error:
        return _as_slices(pl.DataFrame(schema=_COLUMNS)), str(error)
    labels, operations = replays.path_labels(), replays.run.operations
    traces = operations["trace"].to_list()
    shifts = operations.select(pl.col("offset_ns").fill_null(0) + pl.col("start_ns").min())
    shift_ns = shifts.to_series().to_list()

    def placed(segment: PathSegment) -> tuple[int, int, str]:
        operation = labels.operation(segment.event)
        name = labels.kind(segment.event) if segment.explained else UNEXPLAINED
        return traces[operation], shift_ns[operation], name

    stretches = []
    for step, path in zip(replays.steps, paths, strict=True):
        for (trace, offset, name), stretch in groupby(path, placed):
            segments = [*stretch]
            begin, end = round(segments[0].start) + offset, round(segments[-1].end) + offset
            stretches.append((trace, step, begin, end, name))
    return _as_slices(pl.DataFrame(stretches, schema=_COLUMNS, orient="row")), ""


def _as_slices(rows: pl.DataFrame) -> pl.DataFrame:
    """Return segments as slices; segments at a change of rank are joined by arrows, step by step."""
    changes = (pl.col("trace") != pl.col("trace").shift(offset).over("step") for offset in (1, -1))
    is_change = pl.any_horizontal(*(change.fill_null(value=False) for change in changes))
    segments = rows.with_columns(beside=is_change)
    place = pl.int_range(pl.len()).over("step")
    role = pl.when(place == 0).then(pl.lit("s")).when(place == pl.len().over("step") - 1).then(pl.lit("f"))
    joined = segments.filter("beside").select(
        "step",
        "start_ns",
        "trace",
        role.otherwise(pl.lit("t")).alias("role"),
        flow=pl.col("step") + FIRST_FLOW,
    )
    with_roles = segments.join(joined, on=["step", "start_ns", "trace"], how="left", maintain_order="left")
    return slices(with_roles, CRITICAL, args=pl.lit(None)).with_columns(trace=with_roles["trace"])


def whole_path(critical: pl.DataFrame, names: Mapping[int, str]) -> pl.DataFrame:
    """Return the slices of the path as one track, each with the name of its trace; `critical` as above."""
    trace = pl.col("trace").replace_strict(dict(names), return_dtype=pl.String)
    return slices(
        critical,
        CRITICAL,
        category=pl.lit(ALL_RANKS),
        name=pl.concat_str(trace, pl.lit(": "), "name"),
        flow=pl.lit(None),
        role=pl.lit(None),
    )
