"""Forward passes of an inference server: which were prefill, decode and draft, as their ranges say."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.work import with_launch
from ccl_bench.analysis.intervals import outermost, sum_per_window, window_at
from ccl_bench.analysis.names import matching
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import load_data

VLLM = r"^execute_(?:\d+_)?context_(\d+)\([^)]*\)_generation_(\d+)\("
_GENERATED = r"_generation_\d+\((\d+)\)"
_PREFILLED = r"_context_\d+\((\d+)\)|^step\[EXTEND\b[^\]]*\btoks=(\d+)"
OLD_VLLM = r"^execute_new_(\d+)_cached_(\d+)$"
"""Range of vLLM from its pull request 22496 to 31193: requests scheduled for the first time, and again."""
SGLANG = r"^step\[([A-Z][A-Z0-9_]*)\b[^\]]*\bbs=(\d+)"

PASS = f"{VLLM}|{OLD_VLLM}|{SGLANG}"
OF_UNKNOWN_PHASE = (
    r"^(?:v2_)?gpu_model_runner: forward$|^execute_model$|^run_batch$|^\[Executor\] _forward_step \d+"
)
"""Ranges of vLLM, SGLang and TensorRT-LLM that are a pass and do not say of which phase."""

PREFILL, DECODE, MIXED, DRAFT = "prefill", "decode", "mixed", "draft"

BY_LAUNCHES, BY_TWIN, BY_HOST = "launches", "device range", "host range"
"""What times a pass: the work launched in its range, the range's twin on the device, or the range itself."""


@derived(
    reads={
        "kernels": ("start_ns", "end_ns", "correlation"),
        "memcpy": ("start_ns", "end_ns", "correlation"),
        "launches": ("start_ns", "end_ns", "thread", "correlation"),
    },
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    phase=(
        "String",
        "`prefill`, `decode`, `mixed` (both), `prefill part` (some layers), `draft` (a draft model ran it)",
    ),
    mode=("String", "the mode that a range of SGLang states"),
    requests=("Int64", "requests in the pass"),
    generated=("Int64", "tokens computed for the requests that decode; null if the range does not say"),
    prefilled=("Int64", "tokens computed for the requests that prefill; null if the range does not say"),
    timed_by=(
        "String",
        "origin of the times: `launches`, `device range` or `host range`; null if only the launch is known",
    ),
)
def forward_passes(
    annotations: pl.DataFrame,
    kernels: pl.DataFrame,
    memcpy: pl.DataFrame,
    launches: pl.DataFrame,
    devices: pl.DataFrame,
) -> pl.DataFrame:
    """One forward pass of one trace, timed on the device where the trace has one.

    A pass runs on the device after its launch, so that the range on the CPU is no measure of it: it is
    shorter if the host runs ahead, and longer if the host waits for something else. The times of a pass are
    those of the work that was launched inside the range, else those of the device's twin of the range, which
    Kineto writes once for each stream and without the work of ranges inside it. What ran of earlier passes
    meanwhile is not part of a pass. Of ranges inside each other the outermost is the pass.
    """
    is_pass = matching(annotations["name"], PASS)
    if not is_pass.any():
        return DERIVED.get("forward_passes").table.empty()
    passes = annotations.filter(is_pass).with_columns(pl.col("name").cast(pl.String))
    timed = outermost(passes.filter(~pl.col("on_device"))).with_columns(timed_by=pl.lit(BY_HOST))
    if any(table.height for table in (kernels, memcpy, launches, devices)):
        columns = ("start_ns", "end_ns", "correlation")
        work = pl.concat(
            [
                kernels.select(*columns, is_kernel=pl.lit(value=True)),
                memcpy.select(*columns, is_kernel=pl.lit(value=False)),
            ]
        )
        timed = _by_launches(timed, with_launch(work, launches))
    twins = passes.filter("on_device")
    if twins.height and not (timed["timed_by"] == BY_LAUNCHES).any():
        joined = outermost(_joined(twins)).with_columns(timed_by=pl.lit(BY_TWIN))
        timed = _without_earlier(joined, joined["end_ns"].cum_max().shift(1))
    phased = timed.select("start_ns", "end_ns", "timed_by").with_columns(phases(timed["name"]))
    in_order = phased.filter(pl.col("requests") > 0).drop_nulls("phase").sort("start_ns")
    return in_order.select(*DERIVED.get("forward_passes").table.columns)


def phases(names: pl.Series) -> pl.DataFrame:
    """Return phase, mode, requests and their tokens of passes, from their names in order of time."""
    name = pl.col("name")
    context, generation = (
        pl.coalesce(name.str.extract(pattern, part) for pattern in (VLLM, OLD_VLLM)).cast(
            pl.Int64, strict=False
        )
        for part in (1, 2)
    )
    mode, batch = name.str.extract(SGLANG, 1), name.str.extract(SGLANG, 2).cast(pl.Int64, strict=False)
    of_mode = {row["mode"]: row["phase"] for row in load_data("forward_passes")["pass"] if "phase" in row}
    phase = (
        pl.when(_of_draft(names))
        .then(pl.lit(DRAFT))
        .when(mode.is_not_null())
        .then(mode.replace_strict(of_mode, default=None))
        .when((context > 0) & (generation > 0))
        .then(pl.lit(MIXED))
        .when(context > 0)
        .then(pl.lit(PREFILL))
        .when(context.is_not_null())
        .then(pl.lit(DECODE))
    )
    return names.to_frame("name").select(
        phase=phase,
        mode=mode,
        requests=pl.coalesce(context + generation, batch),
        generated=name.str.extract(_GENERATED, 1).cast(pl.Int64, strict=False),
        prefilled=pl.coalesce(name.str.extract(_PREFILLED, group) for group in (1, 2)).cast(
            pl.Int64, strict=False
        ),
    )


def _of_draft(names: pl.Series) -> pl.Series:
    """Return which passes the draft model of speculative decoding ran, from their names in order of time.

    Ranges of SGLang state the mode and not the model. In a trace that verifies drafts, the target model
    decodes by verifying, so that the draft model runs what is called decoding. It also prefills after the
    target model, under the same name: if all prefill passes come in pairs of one name, it runs each second.
    """
    rows = names.to_frame("name").select("name", mode=pl.col("name").str.extract(SGLANG, 1))
    drafted = rows["mode"].is_in(_modes(phase=DRAFT))
    if rows["mode"].is_in(_modes(verifies=True)).any():
        run = pl.col("name").rle_id()
        runs = rows.with_columns(place=pl.int_range(pl.len()).over(run), length=pl.len().over(run))
        drafted |= rows["mode"].is_in(_modes(drafts="all"))
        is_twofold = rows["mode"].is_in(_modes(drafts="every second"))
        if (runs.filter(is_twofold)["length"] % 2 == 0).all():
            drafted |= is_twofold & (runs["place"] % 2 == 1)
    return drafted.fill_null(value=False)


def _modes(**fields: object) -> list[str]:
    """Return the modes of SGLang whose rows in the catalog have all of these fields."""
    return [row["mode"] for row in load_data("forward_passes")["pass"] if fields.items() <= row.items()]


def _by_launches(passes: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Return passes with the times of the work launched in them; `timed_by` is null if there is none."""
    launched = work.with_columns(window_at(work["launch_ns"], passes)).drop_nulls("window")
    times = launched.group_by("window").agg(from_ns=pl.col("start_ns").min(), to_ns=pl.col("end_ns").max())
    ran = passes.with_columns(sum_per_window(passes, times).select("from_ns", "to_ns"))
    timed = ran.with_columns(
        pl.coalesce("from_ns", "start_ns").alias("start_ns"),
        pl.coalesce("to_ns", "end_ns").alias("end_ns"),
        pl.when(pl.col("from_ns").is_not_null()).then(pl.lit(BY_LAUNCHES)).alias("timed_by"),
    )
    # Until when kernels ran that were launched before each range began; null without any.
    is_known = pl.col("launched_before") | pl.col("launch_ns").is_not_null()
    kernels = work.filter(pl.col("is_kernel") & is_known).sort("launch_ns", nulls_last=False)
    launches = kernels["launch_ns"].drop_nulls()
    recorded = launches.search_sorted(passes["start_ns"], side="left").cast(pl.Int64)
    earlier = recorded + kernels["launch_ns"].null_count()
    until = kernels["end_ns"].cum_max().extend_constant(None, 1).gather(earlier - 1)
    return _without_earlier(timed, until)


def _without_earlier(passes: pl.DataFrame, until: pl.Series) -> pl.DataFrame:
    """Return passes that begin when earlier work ended, at `until`, if they go on after it.

    Copies and small kernels on streams of their own run while the device still works on what was launched
    before, and all that time would count. Earlier work that ends later runs concurrently: it delays nothing.
    """
    start = pl.max_horizontal("start_ns", until.alias("until"))
    return passes.with_columns(
        pl.when(until < pl.col("end_ns")).then(start).otherwise("start_ns").alias("start_ns")
    )


def _joined(twins: pl.DataFrame) -> pl.DataFrame:
    """Return one row a pass: twins of one range, known by its id, else by overlapping in time."""
    in_order = twins.sort("name", "start_ns")
    opens = (pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1)).fill_null(value=True).over("name")
    run = opens.cum_sum().over("name").cast(pl.Int64)
    key = pl.when(pl.col("external_id").fill_null(0) > 0).then("external_id").otherwise(-run)
    return (
        in_order.group_by("name", key.alias("pass"), maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .drop("pass")
    )
