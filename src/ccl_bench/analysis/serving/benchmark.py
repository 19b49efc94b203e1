"""The requests of a serving benchmark: which benchmark a run holds, and the times of its requests."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.statistics import percentile, spread
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OK = "ok"
OTHER_ENDS = ("failed", "cancelled", "warmup")

OBJECTIVE = "objective"
"""Statistic under which a quantity's longest tolerated time is kept."""

_SOURCE = ["trace", "benchmark"]
_REQUEST_TIMES = ("ttft", "tpot", "latency", "own_tpot")
_SINCE_FIRST_TOKEN = ("ttft", "tpot", "itl")
_TOLERANCE = 1e-3
"""Share by which the mean latency of requests may differ from that of their summary: tools round it."""

_ONE_OF_THEM = (
    "give the file or directory of one of them, such as run=0.json or stage_0_lifecycle_metrics.json of a "
    "sweep; if one file holds them all, write one of them into a file of its own"
)

_LOADS = {"request_rate": "{:g} requests/s", "concurrency": "concurrency {:g}", "completed": "{:g} completed"}
"""Quantities that distinguish benchmarks, with their words."""
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: the requests that succeeded, how many did not, and what the tool said of all."""

    tool: str
    ok: pl.DataFrame
    """Rows of `requests` that succeeded; empty if the file lists none."""
    ends: Mapping[str, int]
    """How requests ended → how many."""
    stored: Mapping[tuple[str, str], float]
    """Quantity and statistic → what the tool itself computed; without times that were never measured."""
    unmeasured: frozenset[str]
    """Times of which the tool stored 0 or less: what it does where it measured none."""
    in_one_piece: bool
    """Whether every answer of several tokens came at once: when the first token came is not known."""
    duration_s: float | None
    """Length of the benchmark."""
    duration_source: str

    @property
    def objectives(self) -> dict[str, float]:
        """Quantity → longest time, s, of each service-level objective that the tool itself was given."""
        return {name: value for (name, kind), value in self.stored.items() if kind == OBJECTIVE}


def benchmark_of(requests: pl.DataFrame, statistics: pl.DataFrame) -> Benchmark | None:
    """Return the benchmark that a run holds, or None; NotMeasurable if it holds several.

    The requests of one tool and its summary in another file are one benchmark, if they agree. So are
    summaries in two files that state the same.
    """
    statistics = _without_repeated(statistics)
    tool = _only_tool(requests, statistics)
    if tool is None:
        return None
    numbers = statistics.select("quantity", "statistic", "value")
    values = {(quantity, statistic): value for quantity, statistic, value in numbers.iter_rows()}
    ok = requests.filter(pl.col("status") == OK)
    ends = dict(requests.group_by("status").len().iter_rows())
    listed, every = (
        pl.concat([table.select(_SOURCE) for table in tables]).unique().height
        for tables in ([requests], [requests, statistics])
    )
    if ends and listed < every:
        _need_agreement(ok, values)
    # Single gaps between tokens may be 0, their mean is not.
    empty = {key for key, value in values.items() if value <= 0 and key[1] not in {"std", OBJECTIVE}}
    unmeasured = frozenset(
        name for name, kind in empty if name in _REQUEST_TIMES or (name, kind) == ("itl", "mean")
    )
    if ends:
        # Each answer of several tokens ended with its first token, and there are such answers.
        several = ok.filter(pl.col("output_tokens") > 1).drop_nulls(["ttft_s", "latency_s"])
        in_one_piece = several.height > 0 and bool((several["latency_s"] <= several["ttft_s"]).all())
    else:
        # The summary says so, or there were more tokens than answers and no time between them.
        answers, tokens = (values.get((name, "total"), 0.0) for name in ("completed", "output_tokens"))
        has_no_gaps = tokens > answers > 0 and values.get(("itl", "mean"), 1.0) <= 0
        in_one_piece = values.get(("streaming", "total")) == 0 or has_no_gaps
    unknown = {*unmeasured, *(_SINCE_FIRST_TOKEN if in_one_piece else ())}
    stored = {key: value for key, value in values.items() if key[0] not in unknown or key[1] == OBJECTIVE}
    if in_one_piece:
        ok = ok.with_columns(pl.lit(None, pl.Float64).alias("ttft_s"))
    return Benchmark(tool, ok, ends, stored, unmeasured, in_one_piece, *_duration(ok, stored))


def _need_agreement(ok: pl.DataFrame, values: Mapping[tuple[str, str], float]) -> None:
    """Raise NotMeasurable if requests in one file and statistics in another are not of one benchmark."""
    completed, mean = values.get(("completed", "total")), values.get(("latency", "mean"))
    mean_latency = ok["latency_s"].mean()
    if completed is not None and completed != ok.height:
        what = f"one file lists {ok.height} successful requests, but the summary counts {completed:g}"
    elif (
        mean is not None
        and isinstance(mean_latency, float)
        and not math.isclose(mean_latency, mean, rel_tol=_TOLERANCE)
    ):
        what = (
            f"the mean latency is {mean_latency:.6g} s in the requests of one file, "
            f"but {mean:.6g} s in the summary"
        )
    else:
        return
    raise NotMeasurable(f"{what}: the files belong to two benchmarks, or one is incomplete", fix=_ONE_OF_THEM)


def _without_repeated(statistics: pl.DataFrame) -> pl.DataFrame:
    """Return statistics without those of files that repeat what another one states of a benchmark."""
    without_load = statistics.filter(~pl.col("quantity").is_in(["request_rate", "concurrency"]))
    contents: dict[tuple[object, ...], int] = {}
    repeated = []
    for (trace, benchmark), rows in without_load.group_by(_SOURCE, maintain_order=True):
        content = tuple(rows.select("tool", "quantity", "statistic", "value").sort(pl.all()).rows())
        if contents.setdefault(content, trace) != trace:
            repeated.append((trace, benchmark))
    if not repeated:
        return statistics
    sources = pl.DataFrame(repeated, statistics.select(_SOURCE).schema, orient="row")
    return statistics.join(sources, on=_SOURCE, how="anti", nulls_equal=True)


def _only_tool(requests: pl.DataFrame, statistics: pl.DataFrame) -> str | None:
    """Return the tool of the only benchmark, or None if there is no benchmark."""
    if requests.is_empty() and statistics.is_empty():
        return None
    listed, summarised = (table.select(*_SOURCE, "tool").unique() for table in (requests, statistics))
    only_summarised = summarised.join(listed, on=_SOURCE, how="anti", nulls_equal=True)
    both = pl.concat([listed, only_summarised])
    has_summary_apart = (
        listed.height == only_summarised.height == 1 == summarised.height and both["tool"].n_unique() == 1
    )
    if both.height > 1 and not has_summary_apart:
        raise NotMeasurable(
            f"the run holds {both.height} results of serving benchmarks{_loads(statistics)}; a mean over "
            "them would describe none of them",
            fix=f"see them as one curve in the section Serving sweep of ccl-bench report; or {_ONE_OF_THEM}",
        )
    return str(both["tool"][0]) if both.height else None


def list_results(requests: pl.DataFrame, statistics: pl.DataFrame) -> list[list[tuple[int, int]]]:
    """Return the results of a run, each as its sources (trace, benchmark), of which a copy is left out.

    Requests of one source and a summary in another one of the same tool are one result, if they agree on how
    many succeeded and on their mean latency.
    """
    kept = _without_repeated(statistics)
    copies = _sources(statistics) - _sources(kept)
    listed, summarised = _sources(requests) - copies, _sources(kept)
    values = dict(rows_by_source(kept))
    apart = sorted(summarised - listed)
    results = [[source] for source in sorted(listed & summarised)]
    for source, rows in rows_by_source(requests):
        if source in listed - summarised:
            ok = rows.filter(pl.col("status") == OK)
            summary = next(
                (each for each in apart if _is_summary_of(values[each], ok, rows["tool"][0])), None
            )
            results.append([source] if summary is None else [source, summary])
            apart = [each for each in apart if each != summary]
    return sorted([*results, *([source] for source in apart)])


def _sources(table: pl.DataFrame) -> set[tuple[int, int]]:
    return set(table.select(_SOURCE).unique().iter_rows())


def rows_by_source(table: pl.DataFrame) -> Iterator[tuple[tuple[int, int], pl.DataFrame]]:
    """Yield each source (trace, benchmark) with its rows."""
    for (trace, benchmark), rows in table.group_by(_SOURCE, maintain_order=True):
        yield (int(str(trace)), int(str(benchmark))), rows


def _is_summary_of(statistics: pl.DataFrame, ok: pl.DataFrame, tool: str) -> bool:
    """Whether a summary counts these requests and states their mean latency."""
    rows = statistics.filter(pl.col("tool") == tool).select("quantity", "statistic", "value").iter_rows()
    values = {(quantity, statistic): value for quantity, statistic, value in rows}
    mean, mean_latency = values.get(("latency", "mean")), ok["latency_s"].mean()
    return (
        values.get(("completed", "total")) == ok.height
        and mean is not None
        and isinstance(mean_latency, float)
        and math.isclose(mean_latency, mean, rel_tol=_TOLERANCE)
    )


def load_words(values: Mapping[str, float | None]) -> str:
    """Return a load in words: what it states of request rate, concurrency and completed requests."""
    worded = ((words, values.get(name)) for name, words in _LOADS.items())
    return ", ".join(words.format(value) for words, value in worded if value is not None)


def _loads(statistics: pl.DataFrame) -> str:
    """Return the loads of several benchmarks in words, empty if unknown."""
    load_rows = statistics.filter(pl.col("quantity").is_in([*_LOADS]) & (pl.col("statistic") == "total"))
    repeats: Counter[str] = Counter()
    for _, rows in load_rows.sort(_SOURCE, maintain_order=True).group_by(_SOURCE, maintain_order=True):
        repeats[load_words(dict(rows.select("quantity", "value").iter_rows()))] += 1
    loads = [load if count == 1 else f"{count} of {load}" for load, count in repeats.items()]
    more = [f"{len(loads) - _SHOWN} more"] if len(loads) > _SHOWN else []
    return f" ({'; '.join([*loads[:_SHOWN], *more])})" if loads else ""


def _duration(ok: pl.DataFrame, stored: Mapping[tuple[str, str], float]) -> tuple[float | None, str]:
    """Return the length of a benchmark in seconds, and its source."""
    recorded_s = stored.get(("duration", "total"), 0.0)
    if recorded_s > 0:
        return recorded_s, "as the tool recorded it"
    first, last = ok["start_ns"].min(), ok["end_ns"].max()
    if not isinstance(first, int) or not isinstance(last, int) or last <= first:
        return None, ""
    return (last - first) / SECOND_NS, "from the first request sent to the last token received"


def times_to_first_token(ok: pl.DataFrame) -> list[float]:
    """Return the TTFT of each request that has one, s."""
    return ok["ttft_s"].drop_nulls().to_list()


def latencies(ok: pl.DataFrame) -> list[float]:
    """Return the latency of each request, s."""
    return ok["latency_s"].drop_nulls().to_list()


def tpot_of_each(ok: pl.DataFrame) -> pl.Series:
    """Return the TPOT of every request, s; null if it has one token or came at once, or lacks a time."""
    rest = pl.col("latency_s") - pl.col("ttft_s")
    several = (pl.col("output_tokens") > 1) & (rest > 0)
    return ok.select(pl.when(several).then(rest / (pl.col("output_tokens") - 1)).alias("tpot_s")).to_series()


def times_per_output_token(ok: pl.DataFrame) -> list[float]:
    """Return the TPOT of each request whose two output tokens or more came one after the other, s."""
    return tpot_of_each(ok).drop_nulls().to_list()


def gaps(ok: pl.DataFrame) -> list[float]:
    """Return all times between consecutive chunks of output, of all requests, s."""
    return ok["gaps_s"].drop_nulls().explode(empty_as_null=False).to_list()


def total(benchmark: Benchmark, quantity: str) -> int | None:
    """Return the tokens of all requests that succeeded, `quantity` being `input_tokens` or `output_tokens`.

    None if they were not counted, for which tools store 0.
    """
    if benchmark.ok.is_empty():
        return round(benchmark.stored.get((quantity, "total"), 0.0)) or None
    return None if benchmark.ok[quantity].null_count() else int(benchmark.ok[quantity].sum()) or None


def all_tokens(benchmark: Benchmark) -> int | None:
    """Return the tokens that were taken in and given out; None if unknown."""
    parts = total(benchmark, "input_tokens"), total(benchmark, "output_tokens")
    if None not in parts:
        return sum(filter(None, parts))
    return round(benchmark.stored.get(("tokens", "total"), 0.0)) or None


def ends_of(benchmark: Benchmark) -> dict[str, int]:
    """Return the known numbers of requests by their end, as listed, else as the tool counted them."""
    if benchmark.ends:
        return {OK: benchmark.ok.height} | {end: n for end, n in sorted(benchmark.ends.items()) if end != OK}
    counts = {OK: benchmark.stored.get(("completed", "total"))}
    counts |= {end: benchmark.stored.get((end, "total")) or None for end in OTHER_ENDS}
    return {end: round(count) for end, count in counts.items() if count is not None}


def completed(benchmark: Benchmark) -> int | None:
    """Return the number of requests that succeeded."""
    return ends_of(benchmark).get(OK)


def longest(benchmark: Benchmark) -> float:
    """Return the longest latency of a request, s; 0 if none is known."""
    return max(latencies(benchmark.ok), default=0.0)


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Return count, mean, extremes, percentiles and deviation of values; the mean is rounded once.

    Percentiles are interpolated linearly, as all tools do. `std` is the sample deviation, as LLMPerf
    has it; `std_population` divides by n, as the others do.
    """
    mean = math.fsum(values) / len(values)
    summary = spread(values) | {"mean": mean, "p90": percentile(values, 90), "p99": percentile(values, 99)}
    if "std" in summary:
        summary["std_population"] = summary["std"] * math.sqrt((len(values) - 1) / len(values))
    return summary


def within_objectives(
    ok: pl.DataFrame, *, ttft_s: float | None, tpot_s: float | None, latency_s: float | None
) -> pl.DataFrame:
    """Return the requests that keep every objective that is given.

    A request whose tokens came with the first one has no TPOT and keeps any. One that lacks a time that is
    needed keeps nothing.
    """
    one_token = (pl.col("output_tokens") == 1).fill_null(value=False)
    rest, further = pl.col("latency_s") - pl.col("ttft_s"), pl.col("output_tokens") - 1
    conditions = [pl.lit(True)]
    conditions += [pl.col("ttft_s") <= ttft_s] if ttft_s is not None else []
    conditions += [one_token | (rest / further <= tpot_s)] if tpot_s is not None else []
    conditions += [pl.col("latency_s") <= latency_s] if latency_s is not None else []
    return ok.filter(pl.all_horizontal(conditions).fill_null(value=False))
