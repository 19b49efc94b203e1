"""The requests of a serving benchmark: which benchmark a run holds, and the times of its requests.

TTFT runs from sending a request to its first token, TPOT is (latency - TTFT) / (output tokens - 1),
ITL is one gap between consecutive chunks of output. Only requests that succeeded have times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.statistics import percentile, spread
from ccl_bench.errors import NotMeasurable
from ccl_bench.frames import pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OK = "ok"
OTHER_ENDS = ("failed", "cancelled", "warmup")

_NS = 1_000_000_000
_SOURCE = ["trace", "benchmark"]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: the requests that succeeded, how many did not, and what the tool said of all."""

    tool: str
    ok: pl.DataFrame
    """Rows of `requests` that succeeded; empty where the file lists none."""
    ends: Mapping[str, int]
    """How requests ended → how many."""
    stored: Mapping[tuple[str, str], float]
    """Quantity and statistic → what the tool itself computed."""
    duration_s: float | None
    """Length of the benchmark."""
    duration_source: str


def benchmark_of(requests: pl.DataFrame, statistics: pl.DataFrame) -> Benchmark | None:
    """Return the benchmark that a run holds, or None; NotMeasurable where it holds several.

    The requests of one tool and its summary in another file are one benchmark.
    """
    tool = _only_tool(requests, statistics)
    if tool is None:
        return None
    numbers = statistics.select("quantity", "statistic", "value")
    stored = {(quantity, statistic): value for quantity, statistic, value in numbers.iter_rows()}
    ok = requests.filter(pl.col("status") == OK)
    ends = dict(requests.group_by("status").len().iter_rows())
    return Benchmark(tool, ok, ends, stored, *_duration(ok, stored))


def _only_tool(requests: pl.DataFrame, statistics: pl.DataFrame) -> str | None:
    """Return the tool of the only benchmark, or None where there is no benchmark."""
    listed, said = (table.select(*_SOURCE, "tool").unique() for table in (requests, statistics))
    apart = said.join(listed, on=_SOURCE, how="anti", nulls_equal=True)
    both = pl.concat([listed, apart])
    has_summary_apart = listed.height == apart.height == 1 == said.height and both["tool"].n_unique() == 1
    if both.height > 1 and not has_summary_apart:
        raise NotMeasurable(
            f"the run holds {both.height} results of serving benchmarks; a mean over them would be of none",
            fix="give the file or directory of one of them",
        )
    return str(both["tool"][0]) if both.height else None


def _duration(ok: pl.DataFrame, stored: Mapping[tuple[str, str], float]) -> tuple[float | None, str]:
    """Return how long a benchmark took, and who says so."""
    said = stored.get(("duration", "total"))
    if said:
        return said, "as the tool recorded it"
    first, last = ok["start_ns"].min(), ok["end_ns"].max()
    if not isinstance(first, int) or not isinstance(last, int) or last <= first:
        return None, ""
    return (last - first) / _NS, "from the first request sent to the last token received"


def times_to_first_token(ok: pl.DataFrame) -> list[float]:
    """Return the TTFT of each request that has one, s."""
    return ok["ttft_s"].drop_nulls().to_list()


def latencies(ok: pl.DataFrame) -> list[float]:
    """Return the latency of each request, s."""
    return ok["latency_s"].drop_nulls().to_list()


def tpot_of_each(ok: pl.DataFrame) -> pl.Series:
    """Return the TPOT of every request, s; null where it has one token, or lacks a time."""
    rest = pl.col("latency_s") - pl.col("ttft_s")
    several = pl.col("output_tokens") > 1
    return ok.select(pl.when(several).then(rest / (pl.col("output_tokens") - 1)).alias("tpot_s")).to_series()


def times_per_output_token(ok: pl.DataFrame) -> list[float]:
    """Return the TPOT of each request with two output tokens or more, s."""
    return tpot_of_each(ok).drop_nulls().to_list()


def gaps(ok: pl.DataFrame) -> list[float]:
    """Return all times between consecutive chunks of output, of all requests, s."""
    return ok["gaps_s"].drop_nulls().explode(empty_as_null=False).to_list()


def total(found: Benchmark, quantity: str) -> int | None:
    """Return the tokens of all requests that succeeded; `quantity` is `input_tokens` or `output_tokens`."""
    if found.ok.is_empty():
        said = found.stored.get((quantity, "total"))
        return None if said is None else round(said)
    return None if found.ok[quantity].null_count() else int(found.ok[quantity].sum())


def completed(found: Benchmark) -> int | None:
    """Return how many requests succeeded."""
    if found.ends:
        return found.ok.height
    said = found.stored.get(("completed", "total"))
    return None if said is None else round(said)


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Return count, mean, extremes, percentiles and deviation of values; the mean is rounded once.

    Percentiles are interpolated linearly, as all five tools do. `std` is the sample deviation, as LLMPerf
    has it; `std_population` divides by n, as the other four do.
    """
    mean = math.fsum(values) / len(values)
    found = spread(values) | {"mean": mean, "p90": percentile(values, 90), "p99": percentile(values, 99)}
    if "std" in found:
        found["std_population"] = found["std"] * math.sqrt((len(values) - 1) / len(values))
    return found


def meeting(
    ok: pl.DataFrame, *, ttft_s: float | None, tpot_s: float | None, latency_s: float | None
) -> pl.DataFrame:
    """Return the requests that keep every objective that is given.

    A request with one output token has no TPOT and keeps any. One that lacks a time that is needed
    keeps nothing.
    """
    one_token = (pl.col("output_tokens") == 1).fill_null(value=False)
    timed = ok.with_columns(tpot_of_each(ok))
    kept = [pl.lit(True)]
    kept += [pl.col("ttft_s") <= ttft_s] if ttft_s is not None else []
    kept += [one_token | (pl.col("tpot_s") <= tpot_s)] if tpot_s is not None else []
    kept += [pl.col("latency_s") <= latency_s] if latency_s is not None else []
    return timed.filter(pl.all_horizontal(kept).fill_null(value=False)).drop("tpot_s")
