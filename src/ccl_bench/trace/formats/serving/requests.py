"""Requests of a benchmark result, and comparison with the tool's own statistics."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, defstruct

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.serving.json_values import (
    LONGEST_S,
    MOST_TOKENS,
    Impossible,
    finite,
    in_seconds,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ccl_bench.trace.formats.serving.json_values import Floats

_TOUCHES = ("requests",)
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
    parts: list[pl.DataFrame] = field(default_factory=list)
    """Rows that precede those in `requests`."""
    requests: list[Request] = field(default_factory=list)
    stored: list[StoredStatistic] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """For each request that is left out: its position, and the reason."""
    findings: list[Finding] = field(default_factory=list)

    def add(self, place: str, read: Callable[[], Request]) -> None:
        """Keep the request that `read` returns, unless it is impossible; `place` states its position."""
        memory.hold_rows("requests", 1)
        try:
            request = read()
            _check(request)
        except Impossible as error:
            self.lost.append(f"{place}: {error}")
        else:
            self.requests.append(request)
            if len(self.requests) == _LISTED_AT_ONCE:
                self._add_listed()

    def add_whole(self, rows: pl.DataFrame) -> bool:
        """Keep a whole list of requests, columns of which may be absent; False if one is impossible.

        Of one that did not succeed nothing but its error is kept.
        """
        numbers = [name for name in rows.columns if name not in _OF_ALL]
        is_ok = pl.col("status") == "ok"
        masked = rows.with_columns(pl.when(is_ok).then(name).alias(name) for name in numbers)
        if masked.select(pl.any_horizontal(_impossible(masked.columns)).any()).item():
            return False
        memory.hold_rows("requests", masked.height)
        self._add_listed()
        self.parts.append(self._frame({name: masked[name] for name in masked.columns}, masked.height))
        return True

    def _add_listed(self) -> None:
        """Move the requests that were added one by one to the rows."""
        requests, self.requests = self.requests, []
        if requests:
            names = [entry.name for entry in fields(Request)]
            columns = {name: [getattr(request, name) for request in requests] for name in names}
            self.parts.append(self._frame(columns | {"gaps_s": lists_of(columns["gaps_s"])}, len(requests)))

    def _frame(self, columns: Mapping[str, pl.Series | Sequence[object]], height: int) -> pl.DataFrame:
        return TABLES["requests"].frame({"tool": [self.tool] * height, **columns})

    def content(self) -> TraceContent:
        """Return the tables and findings of the file."""
        self._add_listed()
        requests = TABLES["requests"].concat(self.parts)
        impossible = [row for row in self.stored if not _is_possible(row)]
        self.stored = [row for row in self.stored if _is_possible(row)]
        statistics: dict[str, list[object]] = {
            entry.name: [asdict(s)[entry.name] for s in self.stored] for entry in fields(StoredStatistic)
        }
        statistics["tool"] = [self.tool] * len(self.stored)
        tables = {
            "requests": requests,
            "serving_statistics": TABLES["serving_statistics"].frame(statistics),
        }
        reader_findings = dict.fromkeys(self.findings)
        findings = [
            *reader_findings,
            *self._impossible(impossible),
            *self._lost(),
            *self._failed(requests),
            *self._uncounted(requests),
            *self._disagreeing(requests),
        ]
        return TraceContent(tables, findings=findings, attributes={"serving_benchmark": self.tool})

    def unlisted(self, option: str) -> None:
        """Note that the file says nothing of single requests; `option` makes the tool write them."""
        message = f"only statistics are recorded; {option} records each request"
        self.findings.append(Finding("requests-not-listed", "warning", message, self.file, touches=_TOUCHES))

    def _lost(self) -> list[Finding]:
        if not self.lost:
            return []
        reasons = "; ".join(self.lost[:_SHOWN]) + ("; ..." if len(self.lost) > _SHOWN else "")
        message = f"left out as damaged or impossible: {counted(len(self.lost), 'request')}: {reasons}"
        return [Finding("requests-lost", "error", message, self.file, count=len(self.lost), touches=_TOUCHES)]

    def _impossible(self, statistics: list[StoredStatistic]) -> list[Finding]:
        texts = (f"{row.quantity} ({row.statistic}) is {row.value:g}" for row in statistics)
        message = f"statistics that no benchmark can measure are left out: {', '.join(texts)}"
        finding = Finding(
            "statistics-impossible", "error", message, self.file, count=len(statistics), touches=_TOUCHES
        )
        return [finding] if statistics else []

    def _failed(self, requests: pl.DataFrame) -> list[Finding]:
        count, sent = self._failures(requests["status"])
        if not count:
            return []
        share = count / sent
        errors = requests.filter((pl.col("status") == _FAILED) & (pl.col("error") != ""))["error"]
        why = f", the first with: {errors[0][:80]}" if errors.len() else ""
        message = f"{count} of {sent} requests failed ({100 * share:.3g} %){why}; they are in no mean"
        severity = "error" if share > _MANY_FAILED else "warning"
        return [Finding("requests-failed", severity, message, self.file, count=count, touches=_TOUCHES)]

    def _failures(self, status: pl.Series) -> tuple[int, int]:
        """Return the number of failed requests, and of all, as listed, else as the tool counted them."""
        if status.len():
            return int((status == _FAILED).sum()), int((status != "warmup").sum())
        failed, other_outcomes = total(self.stored, _FAILED), ("completed", "cancelled")
        if not failed:
            return 0, 0
        return round(failed), round(failed + sum(total(self.stored, name) or 0 for name in other_outcomes))

    def _uncounted(self, requests: pl.DataFrame) -> list[Finding]:
        """Find answers that came in more pieces than their stated number of tokens."""
        pieces = requests["gaps_s"].list.len().cast(pl.Int64) + 1
        is_counted = (pieces > 1) & requests["output_tokens"].is_not_null()
        answers = int(is_counted.sum())
        short = int((is_counted & (pieces > requests["output_tokens"] + _EXTRA_PIECES)).sum())
        if not short or short <= _MANY_UNCOUNTED * answers:
            return []
        message = (
            f"{short} of {answers} answers came in more pieces than their stated tokens, so tokens "
            "were probably not counted"
        )
        return [Finding("tokens-uncounted", "error", message, self.file, count=short, touches=_TOUCHES)]

    def _disagreeing(self, requests: pl.DataFrame) -> list[Finding]:
        messages: list[str] = []
        for benchmark in requests["benchmark"].unique(maintain_order=True):
            of_benchmark = requests.filter((pl.col("benchmark") == benchmark) & (pl.col("status") == "ok"))
            statistics = [s for s in self.stored if s.benchmark == benchmark]
            messages += disagreements(of_benchmark, statistics)
        return [
            Finding("statistics-disagree", "warning", message, self.file, touches=_TOUCHES)
            for message in messages
        ]


def _is_possible(row: StoredStatistic) -> bool:
    """Whether a statistic lies between 0 and the limit of its quantity; a benchmark takes some time."""
    if row.quantity == "duration":
        return 0 < row.value <= LONGEST_S
    return 0 <= row.value <= (LONGEST_S if row.quantity in _TIMES else _MOST)


def _check(request: Request) -> None:
    if request.status != "ok":
        return
    ttft, latency = request.ttft_s, request.latency_s
    if ttft is not None and latency is not None and latency < ttft:
        raise Impossible(f"it ended after {latency:g} s, before its first token after {ttft:g} s")
    if request.output_tokens == 0:
        raise Impossible("it succeeded without output")


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
        if mean is None or _is_close(requests.select(_ROUGHLY.get(quantity, read)().mean()).item(), mean):
            continue
        values = requests.select(read().drop_nulls()).to_series()
        if not values.len():
            continue
        listed_mean = math.fsum(values) / values.len()
        if not _differ_little(listed_mean, mean, TOLERANCE):
            yield f"the mean {quantity} is stated as {mean:.6g} s, and the requests give {listed_mean:.6g} s"


def _is_close(rough: float | None, stated_mean: float) -> bool:
    """Whether a rounded mean is so close to the one that a tool states that the exact one is close enough."""
    return rough is not None and _differ_little(rough, stated_mean, _CLOSER)


def _differ_little(mean: float, stated_mean: float, tolerance: float) -> bool:
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


_LISTED: dict[str, Any] = {
    "ttft": float | None,
    "latency": float | None,
    "own_tpot": float | None,
    "input_tokens": int | None,
    "output_tokens": int | None,
    "error_code": int | str | None,
    "error_message": str | None,
}
"""What an entry of a list of requests usually is."""


def listed_type(names: Mapping[str, str]) -> type[Struct]:
    """Return the type of an entry which has other names for some of its parts."""
    return defstruct("Listed", [(*part, None) for part in _LISTED.items()], rename=names, gc=False)


def whole_list(entries: Sequence[Any], benchmark: int, unit_s: float) -> pl.DataFrame | None:
    """Return a list of requests as rows; None if a number fits no column."""
    is_failed = [entry.error_code is not None for entry in entries]
    errors = [
        "" if entry.error_code is None else text(entry.error_message) or f"error {text(entry.error_code)}"
        for entry in entries
    ]
    times = {
        f"{name}_s": [getattr(entry, name) for entry in entries] for name in ("ttft", "latency", "own_tpot")
    }
    columns = {
        name: in_seconds(pl.Series(values, dtype=pl.Float64), unit_s) for name, values in times.items()
    }
    try:
        for name in _OF_TOKENS:
            columns[name] = pl.Series([getattr(entry, name) for entry in entries], dtype=pl.Int64)
    except (OverflowError, pl.exceptions.PolarsError):
        return None
    return listed_rows(benchmark, is_failed, errors, columns)


def listed_rows(
    benchmark: int, is_failed: Sequence[bool], errors: Sequence[str], columns: Mapping[str, pl.Series]
) -> pl.DataFrame:
    """Return requests that are called after their places as rows."""
    about = {
        "benchmark": [benchmark] * len(errors),
        "request": [str(place) for place in range(len(errors))],
        "status": [_FAILED if failed else "ok" for failed in is_failed],
        "error": errors,
    }
    return pl.DataFrame({**about, **columns})


_OF_ALL = frozenset({"benchmark", "request", "status", "error"})
_OF_TIME, _OF_TOKENS = ("ttft_s", "latency_s", "own_tpot_s"), ("input_tokens", "output_tokens")


def _impossible(columns: Sequence[str]) -> Iterator[pl.Expr]:
    """Yield the conditions that no possible request meets; null if unknown."""
    yield from (~pl.col(name).is_between(0, LONGEST_S) for name in _OF_TIME if name in columns)
    yield from (~pl.col(name).is_between(0, MOST_TOKENS) for name in _OF_TOKENS if name in columns)
    yield pl.col("latency_s") < pl.col("ttft_s")
    if "output_tokens" in columns:
        yield pl.col("output_tokens") == 0


def lists_of(rows: Sequence[Floats | list[float] | None]) -> pl.Series:
    """Return lists of numbers as a column, much faster than polars converts them."""
    numbers = np.concatenate([np.empty(0), *(row for row in rows if row is not None)])
    lists = numbers_as_lists(numbers, [0 if row is None else len(row) for row in rows])
    is_there = pl.Series([row is not None for row in rows], dtype=pl.Boolean)
    return lists.to_frame().select(pl.when(is_there).then("gaps_s")).to_series()


def numbers_as_lists(numbers: Floats, lengths: Sequence[int]) -> pl.Series:
    """Return numbers as a column of lists of these lengths."""
    places = np.arange(len(lengths))
    owner = pl.Series("row", np.repeat(places, lengths)).set_sorted()
    owned = pl.DataFrame([owner, pl.Series("gaps_s", numbers)])
    lists = owned.group_by("row", maintain_order=True).agg("gaps_s")
    if lists.height == len(lengths):
        return lists["gaps_s"]
    rows = pl.DataFrame({"row": places}).join(lists, on="row", how="left", maintain_order="left")
    return rows["gaps_s"].fill_null(pl.Series([[]], dtype=pl.List(pl.Float64)))
