"""Marks of steps: what shows where each step begins and ends, and the steps that a user chooses."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.device.markers import EVALUATE
from ccl_bench.analysis.device.work import COMMUNICATION
from ccl_bench.analysis.intervals import CHOSEN_PROGRAM, DEVICE_RANGE, PATTERN, outermost
from ccl_bench.analysis.names import holds_for, matching
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
"""Repetitions of the communication pattern below which it is no evidence of steps: two may be two layers."""


@dataclass(frozen=True, slots=True)
class StepEvidence:
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
    evidence = StepEvidence(ranges, of_device, cpu_ops, device_work)
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
    return ranges.select("start_ns", "end_ns", pl.col("name").cast(pl.String))


def _numbered(ranges: pl.DataFrame, pattern: str) -> pl.DataFrame | None:
    """Return the outermost ranges that are numbered as steps, all of one name."""
    marked = keep_rows(ranges, matching(ranges["name"], pattern))
    if marked.is_empty():
        return None
    number = pl.col("name").str.extract(pattern, 1).cast(pl.Int64, strict=False)
    outer = outermost(marked.with_columns(step=number).drop_nulls("step"))
    if outer.is_empty():
        return None
    before = pl.col("end_ns").cum_max().shift(1)
    disjoint = outer.filter((pl.col("start_ns") >= before).fill_null(value=True))
    # Of several names, their numbers left out, that one counts which covers most time.
    called = disjoint.with_columns(kind=pl.col("name").str.replace_all(r"\d+", "").str.to_lowercase())
    covered = called.group_by("kind", maintain_order=True).agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    most = covered.sort("end_ns", descending=True, maintain_order=True)["kind"][0]
    steps = called.filter(pl.col("kind") == most).select("step", "start_ns", "end_ns")
    # Ranges of one number that follow on each other are one step, unless all have that number.
    if steps["step"].n_unique() not in (1, steps.height):
        runs = steps.group_by(pl.col("step").rle_id().alias("run"), maintain_order=True)
        steps = runs.agg(pl.col("step", "start_ns").first(), pl.col("end_ns").last()).drop("run")
    return _counted_on(steps)


def _counted_on(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return steps with numbers that go on where those of the trace begin again, as in each epoch."""
    begins = (ranges["step"].diff() <= 0).fill_null(value=False)
    if not begins.any():
        return ranges
    rows = ranges.with_columns(epoch=begins.cum_sum())
    epochs = rows.group_by("epoch", maintain_order=True).agg(
        first=pl.col("step").first(), length=pl.col("step").last() - pl.col("step").first() + 1
    )
    before = pl.col("length").cum_sum() - pl.col("length")
    shifts = epochs.select("epoch", shift=pl.col("first").first() + before - pl.col("first"))
    on = rows.join(shifts, on="epoch", maintain_order="left")
    return on.select(pl.col("step") + pl.col("shift"), "start_ns", "end_ns")


def _between(marks: pl.Series) -> pl.DataFrame | None:
    """Return the windows between consecutive times, counted from 0."""
    windows = pl.DataFrame({"start_ns": marks, "end_ns": marks.shift(-1)}).drop_nulls()
    return windows.with_row_index("step").cast({"step": pl.Int64}) if windows.height else None


def _by_optimizer(evidence: StepEvidence) -> pl.DataFrame | None:
    """Return the windows from the end of one update of all parameters to the end of the next."""
    ranges, operators = evidence.ranges, evidence.cpu_ops
    updates = ranges.filter(pl.col("name").str.starts_with(OPTIMIZER_RANGE))
    if updates.height < 2:
        return None
    backward = operators.filter(matching(operators["name"], f"^{EVALUATE}"))["start_ns"]
    loads = ranges.filter(matching(ranges["name"], LOADER_RANGE))["start_ns"]
    return _between(update_ends(updates, backward, loads))


def _by_pass(evidence: StepEvidence) -> pl.DataFrame | None:
    """Return the windows from the start of one forward pass of an inference server to the next.

    Passes of a draft model belong to the step that they run in.
    """
    names = evidence.ranges["name"]
    for pattern in (PASS, OF_UNKNOWN_PHASE):
        passes = outermost(evidence.ranges.filter(matching(names, pattern)))
        phased = passes.with_columns(phases(passes["name"])).filter(pl.col("phase").ne_missing(DRAFT))
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


def _by_communication(evidence: StepEvidence) -> pl.DataFrame | None:
    """Return the repetitions of the sequence of communication kernels, if it is that of steps.

    One repetition must hold two different kernels at least: a trace of equal calls has every
    period and so shows nothing. It must also update parameters, which a layer does not: the calls of one
    layer repeat within one pass as those of a step do over a run.
    """
    kernels = evidence.device_work.filter("is_kernel")
    calls = kernels.filter(pl.col("kind") == COMMUNICATION).sort("start_ns")
    names = calls["name"].to_physical().to_list()
    periods = (
        period
        for period in range(2, len(names) // MIN_REPEATS + 1)
        if len(names) % period == 0 and names[period:] == names[:-period] and len({*names[:period]}) > 1
    )
    period = next(periods, None)
    if period is None:
        return None
    marks = calls["start_ns"].gather_every(period)
    is_update = holds_for(kernels["name"], lambda name: kernel_type(name) == OPTIMIZER_KERNEL)
    updates = kernels.filter(is_update)["start_ns"]
    updated = marks.search_sorted(updates, side="right").unique()
    return _between(marks) if set(range(1, marks.len() + 1)) <= set(updated) else None


PROFILER_RANGE = "ProfilerStep"
"""Source of steps that torch's profiler marks, which numbers them one after the other."""

SOURCES: dict[str, Callable[[StepEvidence], pl.DataFrame | None]] = {
    DEVICE_RANGE: lambda evidence: _numbered(evidence.device_ranges, DEVICE_STEP),
    PROFILER_RANGE: lambda evidence: _numbered(evidence.ranges, PROFILER_STEP),
    "numbered range": lambda evidence: _numbered(evidence.ranges, NUMBERED_RANGE),
    "optimizer range": _by_optimizer,
    "forward pass": _by_pass,
    PATTERN: _by_communication,
}
"""How steps are found, the best way first."""

CHOSEN_RANGE = "chosen range"
"""Source of steps that are ranges of a chosen name."""

FORMAT_RANGE = "range of the format"
"""Source of steps that are ranges which the format itself marks, as profiles of XLA do."""


def chosen_ranges(annotations: pl.DataFrame, marker: pl.DataFrame) -> pl.DataFrame | None:
    """Return as steps the runs of the chosen program, else the outermost ranges matching the marker, if any.

    What the first group of the marker captures is the number of a step where that gives each step a number
    of its own; else steps are counted from 0.
    """
    if marker.is_empty():
        return None
    pattern, program = marker["pattern"][0], marker["program"][0]
    if program is not None:
        runs = _program_runs(annotations).filter(pl.col("program") == program).sort("start_ns")
        if runs.height:
            return runs.select(
                pl.int_range(pl.len(), dtype=pl.Int64).alias("step"),
                "start_ns",
                # A run lasts until the next one begins.
                end_ns=pl.col("start_ns").shift(-1).fill_null(pl.col("end_ns").max()),
                source=pl.lit(CHOSEN_PROGRAM),
            )
    if pattern is None:
        return None
    before = pl.col("end_ns").cum_max().shift(1)
    outer = _matching(annotations, pattern).filter((pl.col("start_ns") >= before).fill_null(value=True))
    if outer.is_empty():
        return None
    captured = outer["name"].str.extract(pattern, 1).str.extract(r"^\s*(\d{1,18})\s*$", 1).cast(pl.Int64)
    is_numbered = captured.null_count() == 0 and captured.n_unique() == outer.height
    numbers = captured if is_numbered else pl.int_range(outer.height, dtype=pl.Int64, eager=True)
    return outer.select(numbers.alias("step"), "start_ns", "end_ns", source=pl.lit(CHOSEN_RANGE))


def _program_runs(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return start, end and `program` of the runs of programs on a device."""
    ranges = _named(annotations.filter("on_device"))
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
