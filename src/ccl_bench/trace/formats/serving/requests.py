"""Requests of a benchmark result, and comparison with the tool's own statistics."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.serving.json_values import (
    LONGEST_S,
    Impossible,
    finite,
    in_seconds,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ccl_bench.trace.formats.serving.json_values import Floats

_SHOWN = 3

_TIMES = frozenset({"ttft", "tpot", "itl", "latency", "duration"})
_MOST = 1e18
"""Above every sum of tokens."""

_FAILED = "failed"
_MANY_FAILED = 0.1
"""Share of failed requests above which the others say little of the server under this load."""

_LISTED_AT_ONCE = 1000
"""Requests that are made rows together: objects of Python take several times as much memory."""

_EXTRA_PIECES = 2
"""Pieces of an answer without a token that servers send: one that names the role, one that ends it."""
_MANY_UNCOUNTED = 0.05
"""Share of answers with more pieces than tokens above which the tokens were not counted."""


@dataclass(slots=True)
class Request:
    """One row of `requests`."""

    benchmark: int
    request: str
    status: str = "ok"
    start_ns: int | None = None
    end_ns: int | None = None
    ttft_s: float | None = None
    latency_s: float | None = None
    own_tpot_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    gaps_s: Floats | list[float] | None = None
    error: str = ""


@dataclass(slots=True)
class RequestRows:
    """Requests and statistics of one file."""

    tool: str
    file: str
    stored: list[StoredStatistic] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """For each request that is left out: where it stands, and the reason."""
    findings: list[Finding] = field(default_factory=list)
    _listed: list[Request] = field(default_factory=list)
    _parts: list[pl.DataFrame] = field(default_factory=list)
    """Rows that precede those that are listed."""

    def add(self, where: str, read: Callable[[], Request]) -> None:
        """Keep the request that `read` returns, unless it is impossible; `where` it stands in the file."""
        memory.hold_rows("requests", 1)
        try:
            request = read()
            ttft, latency = request.ttft_s, request.latency_s
            if ttft is not None and latency is not None and latency < ttft:
                raise Impossible(f"it ended after {latency:g} s, before its first token after {ttft:g} s")
            if request.status == "ok" and request.output_tokens == 0:
                raise Impossible("it succeeded without output")
        except Impossible as error:
            self.lost.append(f"{where}: {error}")
            return
        self._listed.append(request)
        if len(self._listed) == _LISTED_AT_ONCE:
            self._add_listed()

    def _add_listed(self) -> None:
        """Move the requests that were added to the rows."""
        requests, self._listed = self._listed, []
        columns: dict[str, Any] = {
            entry.name: [getattr(request, entry.name) for request in requests] for entry in _FIELDS
        }
        columns |= {"gaps_s": lists_of(columns["gaps_s"]), "tool": [self.tool] * len(requests)}
        self._parts.append(TABLES["requests"].frame(columns))

    def unlisted(self, option: str) -> None:
        """Note that the file says nothing of single requests; `option` makes the tool write them."""
        self._find("requests-not-listed", f"only statistics are recorded; {option} records each request")

    def _find(self, code: str, message: str, severity: str = "warning", count: int = 1) -> None:
        self.findings.append(Finding(code, severity, message, self.file, count=count, touches=("requests",)))

    def content(self) -> TraceContent:
        """Return the tables and findings of the file."""
        self._add_listed()
        requests = TABLES["requests"].concat(self._parts)
        self.findings = list(dict.fromkeys(self.findings))
        impossible = [row for row in self.stored if not _is_possible(row)]
        self.stored = [row for row in self.stored if _is_possible(row)]
        if impossible:
            texts = ", ".join(f"{row.quantity} ({row.statistic}) is {row.value:g}" for row in impossible)
            message = f"statistics that no benchmark can measure are left out: {texts}"
            self._find("statistics-impossible", message, "error", len(impossible))
        if self.lost:
            reasons = "; ".join(self.lost[:_SHOWN]) + ("; ..." if len(self.lost) > _SHOWN else "")
            message = f"left out as damaged or impossible: {counted(len(self.lost), 'request')}: {reasons}"
            self._find("requests-lost", message, "error", len(self.lost))
        self._find_failed(requests)
        self._find_uncounted(requests)
        for benchmark in requests["benchmark"].unique(maintain_order=True):
            succeeded = requests.filter((pl.col("benchmark") == benchmark) & (pl.col("status") == "ok"))
            for message in disagreements(succeeded, [s for s in self.stored if s.benchmark == benchmark]):
                self._find("statistics-disagree", message)
        statistics: dict[str, list[object]] = {
            entry.name: [getattr(row, entry.name) for row in self.stored] for entry in fields(StoredStatistic)
        }
        statistics["tool"] = [self.tool] * len(self.stored)
        settings = [*self.settings, *self._settings_in_name({*requests["benchmark"]})]
        setting_columns: dict[str, list[object]] = {
            entry.name: [getattr(row, entry.name) for row in settings] for entry in fields(Setting)
        }
        setting_columns["tool"] = [self.tool] * len(settings)
        tables = {
            "requests": requests,
            "serving_statistics": TABLES["serving_statistics"].frame(statistics),
            "serving_settings": TABLES["serving_settings"].frame(setting_columns),
        }
        return TraceContent(tables, findings=self.findings, attributes={"serving_benchmark": self.tool})

    def _settings_in_name(self, listed: set[int]) -> Iterator[Setting]:
        """Yield the parallelism in the path of the file for each benchmark that states none itself."""
        in_name = {axis: str(int(degree)) for axis, degree in _DEGREE.findall(self.file.lower())}
        stating = {row.benchmark for row in self.settings if row.setting.rpartition("_")[2] in _AXES}
        for benchmark in sorted(({row.benchmark for row in self.stored} | listed) - stating):
            yield from (Setting(benchmark, axis, degree) for axis, degree in in_name.items())

    def _find_failed(self, requests: pl.DataFrame) -> None:
        """Find failed requests, as listed, else as the tool counted them."""
        status = requests["status"]
        if status.len():
            count, sent = int((status == _FAILED).sum()), int((status != "warmup").sum())
        else:
            failed, completed, cancelled = (
                total(self.stored, name) or 0.0 for name in (_FAILED, "completed", "cancelled")
            )
            count, sent = round(failed), round(failed + completed + cancelled)
        if not count:
            return
        errors = requests.filter((pl.col("status") == _FAILED) & (pl.col("error") != ""))["error"]
        why = f", the first with: {errors[0][:80]}" if errors.len() else ""
        message = f"{count} of {sent} requests failed ({100 * count / sent:.3g} %){why}; they are in no mean"
        self._find("requests-failed", message, "error" if count / sent > _MANY_FAILED else "warning", count)

    def _find_uncounted(self, requests: pl.DataFrame) -> None:
        """Find answers that came in more pieces than their stated number of tokens."""
        pieces = requests["gaps_s"].list.len().cast(pl.Int64) + 1
        is_counted = (pieces > 1) & requests["output_tokens"].is_not_null()
        answers = int(is_counted.sum())
        short = int((is_counted & (pieces > requests["output_tokens"] + _EXTRA_PIECES)).sum())
        if short > _MANY_UNCOUNTED * answers:
            message = (
                f"{short} of {answers} answers came in more pieces than their stated tokens, so tokens "
                "were probably not counted"
            )
            self._find("tokens-uncounted", message, "error", short)


_FIELDS = fields(Request)


def _is_possible(row: StoredStatistic) -> bool:
    """Whether a statistic lies between 0 and the limit of its quantity; a benchmark takes some time."""
    if row.quantity == "duration":
        return 0 < row.value <= LONGEST_S
    return 0 <= row.value <= (LONGEST_S if row.quantity in _TIMES else _MOST)


TOLERANCE = 1e-3
"""Share by which a mean may differ: where latency is put together from gaps, some microseconds lack."""

_IN_MILLISECONDS = re.compile(r"(mean|median|std|min|max|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_LATENCY = {"e2el", "e2e_latency"}
_STATISTICS = {"avg": "mean", "median": "p50", "stddev": "std", "std_dev": "std"}
_STATISTIC = re.compile(r"mean|median|std_dev|min|max|p\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class StoredStatistic:
    """One row of `serving_statistics`."""

    benchmark: int
    quantity: str
    statistic: str
    value: float


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of `serving_settings`."""

    benchmark: int
    setting: str
    value: str


_AXES = ("tp", "pp", "ep", "dp", "devices")
_DEGREE = re.compile(r"(?<![a-z0-9])(tp|pp|ep|dp)[-_=]?(\d{1,6})(?![a-z0-9])")
"""Parallelism in the name of a file, such as `llama_tp4_pp2_qps_16.json`."""


def settings_of(
    document: Mapping[str, object], names: Mapping[str, str], benchmark: int
) -> Iterator[Setting]:
    """Yield the settings that a result states; `names` is key to setting."""
    for key, setting in names.items():
        value = document.get(key)
        if isinstance(value, bool):
            yield Setting(benchmark, setting, str(value).lower())
        elif isinstance(value, float) and math.isfinite(value):
            yield Setting(benchmark, setting, f"{value:g}")
        elif isinstance(value, str | int) and value != "":
            yield Setting(benchmark, setting, text(value))


def total(stored: Iterable[StoredStatistic], quantity: str) -> float | None:
    """Return the sum over benchmarks of a number of which each has one; None if none says it."""
    totals = [row.value for row in stored if (row.quantity, row.statistic) == (quantity, "total")]
    return math.fsum(totals) if totals else None


def statistic(name: str) -> str:
    """Return the one name of a statistic that tools call differently."""
    return _STATISTICS.get(name, name)


def statistics_of(
    summary: Mapping[str, object], quantity: str, benchmark: int, unit_s: float = 1.0
) -> Iterator[StoredStatistic]:
    """Yield what the keys of a summary state of a time, such as `mean`, `median` and `p99`."""
    for key, value in summary.items():
        number = finite(value)
        if number is not None and _STATISTIC.fullmatch(key):
            yield StoredStatistic(benchmark, quantity, statistic(key), in_seconds(number, unit_s))


def in_milliseconds(document: Mapping[str, object], benchmark: int) -> Iterator[StoredStatistic]:
    """Yield the statistics in keys such as `mean_ttft_ms`."""
    matches = (match for key in document if (match := _IN_MILLISECONDS.fullmatch(key)))
    for match in matches:
        number = finite(document[match[0]])
        if number is not None:
            quantity = "latency" if match[2] in _LATENCY else match[2]
            yield StoredStatistic(benchmark, quantity, statistic(match[1]), number / 1000)


def totals(
    document: Mapping[str, object], names: Mapping[str, str], benchmark: int
) -> Iterator[StoredStatistic]:
    """Yield the numbers of which there is one; `names` is key to quantity."""
    for key, quantity in names.items():
        number = finite(document.get(key))
        if number is not None:
            yield StoredStatistic(benchmark, quantity, "total", number)


def disagreements(requests: pl.DataFrame, stored: Iterable[StoredStatistic]) -> Iterator[str]:
    """Yield the statistics of the tool that its list of requests does not give."""
    by_quantity = {(row.quantity, row.statistic): row.value for row in stored}
    completed = by_quantity.get(("completed", "total"))
    if completed is not None and completed != requests.height:
        yield f"{completed:g} requests succeeded by the tool's count, and {requests.height} by the list"
    for quantity, read in _VALUES.items():
        mean = by_quantity.get((quantity, "mean"))
        if mean is None:
            continue
        rough = requests.select(_ROUGHLY.get(quantity, read)().mean()).item()
        if rough is not None and differ_little(rough, mean, _CLOSER):
            continue
        values = requests.select(read().drop_nulls()).to_series()
        if not values.len():
            continue
        listed_mean = math.fsum(values) / values.len()
        if not differ_little(listed_mean, mean):
            yield f"the mean {quantity} is stated as {mean:.6g} s, and the requests give {listed_mean:.6g} s"


def differ_little(mean: float, stated_mean: float, tolerance: float = TOLERANCE) -> bool:
    """Whether a mean is the one that a tool states, except for rounding."""
    return abs(mean - stated_mean) <= tolerance * max(abs(mean), abs(stated_mean))


_CLOSER = 0.99 * TOLERANCE
"""Where a rounded mean is as close, the exact one, which takes long of millions, is within the tolerance."""

_VALUES: Mapping[str, Callable[[], pl.Expr]] = {
    "ttft": lambda: pl.col("ttft_s"),
    "latency": lambda: pl.col("latency_s"),
    "itl": lambda: pl.col("gaps_s").explode(),
    "tpot": lambda: pl.when(pl.col("output_tokens") >= 2).then(
        (pl.col("latency_s") - pl.col("ttft_s")) / (pl.col("output_tokens") - 1)
    ),
}
"""Quantity of which a tool states a mean → what requests give of it."""

_ROUGHLY: Mapping[str, Callable[[], pl.Expr]] = {
    "itl": lambda: pl.col("gaps_s").list.sum().sum() / pl.col("gaps_s").list.len().sum()
}
"""Quantity → a rounded mean of it that needs no second copy of its values."""


def lists_of(rows: Sequence[Floats | list[float] | None]) -> pl.Series:
    """Return lists of numbers as a column, much faster than polars converts them."""
    row_numbers = np.arange(len(rows))
    owner = np.repeat(row_numbers, [0 if row is None else len(row) for row in rows])
    numbers = np.concatenate([np.empty(0), *(row for row in rows if row is not None)])
    owned = pl.DataFrame([pl.Series("row", owner).set_sorted(), pl.Series("gaps_s", numbers)])
    lists = owned.group_by("row", maintain_order=True).agg("gaps_s")
    is_there = pl.Series("is_there", [row is not None for row in rows], dtype=pl.Boolean)
    all_rows = pl.DataFrame([pl.Series("row", row_numbers), is_there])
    of_rows = all_rows.join(lists, on="row", how="left", maintain_order="left")
    empty = pl.lit([], dtype=pl.List(pl.Float64))
    return of_rows.select(pl.when("is_there").then(pl.col("gaps_s").fill_null(empty))).to_series()
