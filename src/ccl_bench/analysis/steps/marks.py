"""Marks of steps: what shows where each step begins and ends, and the steps that a user chooses."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.device.markers import EVALUATE
from ccl_bench.analysis.device.work import COMMUNICATION
from ccl_bench.analysis.intervals import CHOSEN_PROGRAM, DEVICE_RANGE, PATTERN, outermost
from ccl_bench.analysis.names import matching
from ccl_bench.analysis.serving.forward_passes import DRAFT, OF_UNKNOWN_PHASE, PASS, phases
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.kernel_types import kernel_type
from ccl_bench.result import WHOLE_TRACE
from ccl_bench.schema.table import keep_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ccl_bench.result.step_choice import StepChoice

OPTIMIZER_RANGE = "Optimizer.step#"


def update_ends(ranges: pl.DataFrame, backward: pl.Series, loads: pl.Series) -> pl.Series:
    """Return the end of each update of all parameters, in order.

    `ranges` are those of optimizers, `backward` the starts of backward operators, `loads` those of reads
    from a data loader. Optimizers without a backward pass between them are of one step, as are Muon and
    AdamW on parts of the parameters. Where each has a backward pass of its own, as in adversarial
    training, they take turns: then the last of each turn ends a step.
    """
    steps = outermost(ranges)
    passed = backward.sort().search_sorted(steps["start_ns"]).cast(pl.Int64)
    since = passed - passed.shift(1, fill_value=0)
    opens = (since > 0) if backward.len() else pl.Series([True]).new_from_index(0, steps.height)
    joined = steps.with_columns(since.alias("since"), update=opens.cum_sum())
    updates = joined.group_by("update", maintain_order=True).agg(
        pl.col("name"), pl.col("since").sum(), pl.col("start_ns").first(), pl.col("end_ns").last()
    )
    turn = _turn(updates, loads)
    return updates["end_ns"].gather_every(turn, turn - 1)


def _turn(updates: pl.DataFrame, loads: pl.Series) -> int:
    """Return the number of updates in one step: all of them if they take no turns.

    Optimizers of different names take turns by name. Those of one name do where the backward passes before
    them take turns in size, unless data are read for each. What precedes the first one may lie before
    the recording, and proves nothing.
    """
    names = [tuple(of_update) for of_update in updates["name"].to_list()]
    by_name = _cycle(names)
    sizes = list(zip(names, updates["since"], strict=True))[1:]
    read = loads.sort().search_sorted(updates["start_ns"])
    reads_for_each = bool(loads.len()) and bool((read.diff().drop_nulls() > 0).all())
    by_size = by_name if by_name == 1 and reads_for_each else _cycle(sizes)
    return by_size or by_name or updates.height


def _cycle(keys: Sequence[Hashable]) -> int | None:
    """Return after how many keys they repeat, seen twice at least; None if they do not."""
    for length in range(1, len(keys) // 2 + 1):
        if keys[length:] == keys[:-length]:
            return length
    return None


PROFILER_STEP = r"^ProfilerStep\s*#\s*(\d+)$"
NUMBERED_RANGE = (
    r"(?i)^\W*(?:(?:train(?:ing)?|global)[\W_]*)?(?:step|iteration|iter)[\W_]*(\d+)(?:\s*(?:/|of)\s*\d+)?\W*$"
)
DEVICE_STEP = r"#step_num=(\d+)#$"
"""Ranges of a device that are its steps, where a reader of XLA's profiles found them there."""
PROGRAM_RUN = r"^(.+)#run=\d+#$"
"""Ranges of a device that are the runs of a program, where a reader of XLA's profiles found them there."""
LOADER_RANGE = r"^enumerate\(DataLoader\)#"

OPTIMIZER_KERNEL = "optimizer"
"""Type of the kernels that update parameters."""

MIN_REPEATS = 3
"""Repetitions of the communication pattern below which it is no evidence of steps."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one trace holds that can show its steps."""

    ranges: pl.DataFrame
    """Named ranges of CPU threads."""
    device_ranges: pl.DataFrame
    """Named ranges of the device."""
    cpu_ops: pl.DataFrame
    device_work: pl.DataFrame


def marked_steps(
    annotations: pl.DataFrame, cpu_ops: pl.DataFrame, device_work: pl.DataFrame
) -> pl.DataFrame | None:
    """Return `step`, `start_ns`, `end_ns` and `source` of the steps that a trace marks, or None."""
    on_device = annotations["on_device"]
    ranges, of_device = (_named(keep_rows(annotations, place)) for place in (~on_device, on_device))
    evidence = Evidence(ranges, of_device, cpu_ops, device_work)
    for source, find in SOURCES.items():
        steps = find(evidence)
        if steps is not None and steps.height:
            return steps.with_columns(pl.lit(source).alias("source"))
    return None


def whole_trace(*tables: pl.DataFrame) -> pl.DataFrame:
    """Return all of a trace as one window; no row for a trace that holds nothing."""
    spans = pl.concat([table.select("start_ns", "end_ns") for table in tables])
    whole = spans.select(
        pl.lit(0, dtype=pl.Int64).alias("step"),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.lit(WHOLE_TRACE).alias("source"),
    )
    return whole if spans.height else whole.clear()


def _named(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return start, end and name of ranges, names as text."""
    return pl.DataFrame([ranges["start_ns"], ranges["end_ns"], ranges["name"].cast(pl.String)])


def _device_steps(evidence: Evidence) -> pl.DataFrame | None:
    return _numbered(evidence.device_ranges, DEVICE_STEP)


def _profiler_steps(evidence: Evidence) -> pl.DataFrame | None:
    return _numbered(evidence.ranges, PROFILER_STEP)


def _numbered_ranges(evidence: Evidence) -> pl.DataFrame | None:
    return _numbered(evidence.ranges, NUMBERED_RANGE)


def _numbered(ranges: pl.DataFrame, pattern: str) -> pl.DataFrame | None:
    """Return the outermost ranges that are numbered as steps, all of one name."""
    marked_ranges = keep_rows(ranges, matching(ranges["name"], pattern))
    if marked_ranges.is_empty():
        return None
    number = pl.col("name").str.extract(pattern, 1).cast(pl.Int64, strict=False)
    outer = outermost(marked_ranges.with_columns(number.alias("step")).drop_nulls("step"))
    if outer.is_empty():
        return None
    starts, before = outer["start_ns"].slice(1), outer["end_ns"].slice(0, outer.height - 1).cum_max()
    disjoint = keep_rows(outer, pl.concat([pl.Series([True]), starts >= before]))
    return _counted_on(_in_one_piece(_of_one_name(disjoint)))


def _of_one_name(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of the name, its numbers left out, that covers most time."""
    called = ranges.with_columns(kind=pl.col("name").str.replace_all(r"\d+", "").str.to_lowercase())
    if called["kind"].n_unique() == 1:
        return called[["step", "start_ns", "end_ns"]]
    covered = called.group_by("kind", maintain_order=True).agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    name_of_most_time = covered.sort("end_ns", descending=True, maintain_order=True)["kind"][0]
    return called.filter(pl.col("kind") == name_of_most_time).select("step", "start_ns", "end_ns")


def _in_one_piece(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return one row for ranges of one number that follow on each other, unless all have that number."""
    if ranges["step"].n_unique() in (1, ranges.height):
        return ranges
    runs = ranges.group_by(pl.col("step").rle_id().alias("run"), maintain_order=True)
    return runs.agg(pl.col("step", "start_ns").first(), pl.col("end_ns").last()).drop("run")


def _counted_on(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return steps with numbers that go on where those of the trace begin again, as in each epoch."""
    steps = ranges["step"]
    begins = pl.concat([pl.Series([False]), steps.slice(1) <= steps.slice(0, steps.len() - 1)])
    if not begins.any():
        return ranges
    rows = ranges.with_columns(epoch=begins.cum_sum())
    epochs = rows.group_by("epoch", maintain_order=True).agg(
        first=pl.col("step").first(), length=pl.col("step").last() - pl.col("step").first() + 1
    )
    before = epochs["length"].cum_sum() - epochs["length"]
    shifts = epochs.select("epoch", shift=epochs["first"][0] + before - epochs["first"])
    on = rows.join(shifts, on="epoch", maintain_order="left")
    return on.select(pl.col("step") + pl.col("shift"), "start_ns", "end_ns")


def _between(marks: pl.Series) -> pl.DataFrame | None:
    """Return the windows between consecutive times, counted from 0."""
    windows = pl.DataFrame({"start_ns": marks, "end_ns": marks.shift(-1)}).drop_nulls()
    return windows.with_row_index("step").cast({"step": pl.Int64}) if windows.height else None


def _by_optimizer(evidence: Evidence) -> pl.DataFrame | None:
    """Return the windows from the end of one update of all parameters to the end of the next."""
    ranges, operators = evidence.ranges, evidence.cpu_ops
    updates = ranges.filter(pl.col("name").str.starts_with(OPTIMIZER_RANGE))
    if updates.height < 2:
        return None
    backward = operators.filter(matching(operators["name"], f"^{EVALUATE}"))["start_ns"]
    loads = ranges.filter(matching(ranges["name"], LOADER_RANGE))["start_ns"]
    return _between(update_ends(updates, backward, loads))


def _by_pass(evidence: Evidence) -> pl.DataFrame | None:
    """Return the windows from the start of one forward pass of an inference server to the next.

    Passes of a draft model belong to the step that they run in.
    """
    names = evidence.ranges["name"]
    for pattern in (PASS, OF_UNKNOWN_PHASE):
        passes = outermost(evidence.ranges.filter(matching(names, pattern)))
        phased = passes.hstack(phases(passes["name"])).filter(pl.col("phase").ne_missing(DRAFT))
        windows = _between(pl.concat([phased["start_ns"], _end_of_last(phased, evidence.device_work)]))
        if windows is not None:
            return windows
    return None


def _end_of_last(passes: pl.DataFrame, work: pl.DataFrame) -> pl.Series:
    """Return when the step of the last pass ends, ns; nothing without its work or others of its kind.

    No pass follows that would end it. It gets the mean length of the others of its phase and mode, so that
    the work of every pass counts and the mean step stays as the starts of passes show it.
    """
    kinds, starts = passes.select("phase", "mode").rows(), passes["start_ns"]
    lengths = [
        length for kind, length in zip(kinds, starts.diff().to_list()[1:], strict=False) if kind == kinds[-1]
    ]
    ends = pl.Series(starts.name, [], dtype=pl.Int64)
    if not lengths or not work["launch_ns"].is_between(starts[-1], passes["end_ns"][-1]).any():
        return ends
    return ends.extend_constant(starts[-1] + round(statistics.fmean(lengths)), 1)


def _by_communication(evidence: Evidence) -> pl.DataFrame | None:
    """Return the repetitions of the sequence of communication kernels, if it is that of steps.

    One repetition must hold two different kernels at least: a trace of equal calls has every
    period and so shows nothing. It must also update parameters, which a layer does not: the calls of one
    layer repeat within one pass as those of a step do over a run.
    """
    kernels = evidence.device_work.filter("is_kernel")
    calls = kernels.filter(pl.col("kind") == COMMUNICATION).sort("start_ns")
    period = _period(calls["name"].to_physical().to_list())
    if period is None:
        return None
    marks = calls["start_ns"].gather_every(period)
    updates = kernels.filter(_of_optimizer(kernels["name"]))["start_ns"]
    updated = marks.search_sorted(updates, side="right").unique()
    return _between(marks) if set(range(1, marks.len() + 1)) <= set(updated) else None


def _of_optimizer(names: pl.Series) -> pl.Series:
    distinct = names.unique()
    updating = [kernel_type(name) == OPTIMIZER_KERNEL for name in distinct.cast(pl.String)]
    return names.is_in(distinct.filter(pl.Series(updating, dtype=pl.Boolean)).implode())


def _period(names: list[int]) -> int | None:
    """Return the shortest period of a sequence that repeats it wholly, or None."""
    longest = len(names) // MIN_REPEATS
    for period in range(2, longest + 1):
        if len(names) % period == 0 and names[period:] == names[:-period] and len(set(names[:period])) > 1:
            return period
    return None


PROFILER_RANGE = "ProfilerStep"
"""Source of steps that torch's profiler marks, which numbers them one after the other."""

SOURCES: dict[str, Callable[[Evidence], pl.DataFrame | None]] = {
    DEVICE_RANGE: _device_steps,
    PROFILER_RANGE: _profiler_steps,
    "numbered range": _numbered_ranges,
    "optimizer range": _by_optimizer,
    "forward pass": _by_pass,
    PATTERN: _by_communication,
}
"""How steps are found, the best way first."""

CHOSEN_RANGE = "chosen range"
"""Source of steps that are ranges of a chosen name."""

FORMAT_RANGE = "range of the format"
"""Source of steps that are ranges which the format itself marks, as profiles of XLA do."""

_NUMBER = r"^\s*(\d{1,18})\s*$"


def chosen_ranges(annotations: pl.DataFrame, marker: pl.DataFrame) -> pl.DataFrame | None:
    """Return as steps the runs of the chosen program, else the outermost ranges matching the marker, if any.

    What the first group of the marker captures is the number of a step where that gives each step a number
    of its own; else steps are counted from 0.
    """
    if marker.is_empty():
        return None
    pattern, program = marker["pattern"][0], marker["program"][0]
    runs = None if program is None else _runs_of(annotations, program)
    if runs is not None or pattern is None:
        return runs
    ranges = _outermost(_matching(annotations, pattern))
    if ranges.is_empty():
        return None
    captured = ranges["name"].str.extract(pattern, 1).str.extract(_NUMBER, 1).cast(pl.Int64)
    is_numbered = captured.null_count() == 0 and captured.n_unique() == ranges.height
    numbers = captured if is_numbered else pl.int_range(ranges.height, dtype=pl.Int64, eager=True)
    return ranges.select(numbers.alias("step"), "start_ns", "end_ns", pl.lit(CHOSEN_RANGE).alias("source"))


def _runs_of(annotations: pl.DataFrame, program: str) -> pl.DataFrame | None:
    """Return the runs of a program as steps, each until the next one; None without any."""
    runs = _program_runs(annotations).filter(pl.col("program") == program).sort("start_ns")
    if runs.is_empty():
        return None
    return runs.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("step"),
        "start_ns",
        pl.col("start_ns").shift(-1).fill_null(pl.col("end_ns").max()).alias("end_ns"),
        pl.lit(CHOSEN_PROGRAM).alias("source"),
    )


def _program_runs(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return start, end and `program` of the runs of programs on a device."""
    ranges = _named(keep_rows(annotations, annotations["on_device"]))
    program = pl.col("name").str.extract(PROGRAM_RUN, 1).alias("program")
    return ranges.select("start_ns", "end_ns", program).drop_nulls("program")


def program_names(annotations: pl.DataFrame) -> list[str]:
    """Return the programs that ran on a device, the one that took most time first."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    totals = _program_runs(annotations).group_by("program").agg(length.alias("time_ns"))
    return totals.sort("time_ns", "program", descending=[True, False])["program"].to_list()


def overlapping_ranges(annotations: pl.DataFrame, pattern: str) -> int:
    """Return the number of matching ranges that begin in one step and end after it, and so are in no step."""
    ordered = _matching(annotations, pattern)
    before = pl.col("end_ns").cum_max().shift(1)
    return ordered.filter((pl.col("start_ns") < before) & (pl.col("end_ns") > before)).height


def range_names(annotations: pl.DataFrame) -> list[str]:
    """Return the names of ranges on the CPU, the most frequent first."""
    named = annotations.filter(~pl.col("on_device")).select(pl.col("name").cast(pl.String))
    counts = named.drop_nulls().group_by("name").len().sort("len", "name", descending=[True, False])
    return counts["name"].to_list()


def select_steps(steps: pl.DataFrame, choice: StepChoice) -> pl.DataFrame:
    """Return the chosen ones of the steps of one trace, which are in order."""
    return steps.slice(choice.skip).filter(_is_named(choice))


def select_step_times(step_times: pl.DataFrame, choice: StepChoice) -> pl.DataFrame:
    """Return the chosen ones of the step times of one file, which numbers its steps in order."""
    first = step_times["step"].unique().sort().head(choice.skip)
    return step_times.filter(~pl.col("step").is_in(first.implode()), _is_named(choice))


def _is_named(choice: StepChoice) -> pl.Expr:
    conditions = [pl.col("step").is_between(first, last) for first, last in choice.ranges]
    return pl.any_horizontal(conditions) if conditions else pl.lit(value=True)


def _matching(annotations: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the ranges on the CPU whose names match, by start; of equal starts the longest first."""
    on_cpu = annotations.filter(~pl.col("on_device") & (pl.col("start_ns") < pl.col("end_ns")))
    named = on_cpu.select(pl.col("name").cast(pl.String), "start_ns", "end_ns")
    return named.filter(pl.col("name").str.contains(pattern)).sort("start_ns", -pl.col("end_ns"))


def _outermost(ordered: pl.DataFrame) -> pl.DataFrame:
    before = pl.col("end_ns").cum_max().shift(1)
    return ordered.filter((pl.col("start_ns") >= before).fill_null(value=True))
