"""A run on another network: the step replayed with other transfers, by latency and bandwidth or by a table.

Hockney model: a call of S bytes takes `alpha + factor · S / B`, with the factor of nccl-tests for its
collective and group. Calls keep what they took beyond the model of the run: only the ratio of both models
changes them.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ccl_bench import storage
from ccl_bench.analysis.communication.bandwidth import known_bus_factor
from ccl_bench.analysis.communication.groups import spans_nodes
from ccl_bench.base.errors import InputError, NotMeasurable, UsageError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.catalog.collective_reference import measurement, reference_curve, system, time_at
from ccl_bench.metrics.shared.ceiling import with_ceiling
from ccl_bench.result.prediction import REACHES, CallChange, Doubling, FittedLink, Prediction
from ccl_bench.side_files.nccl_tests import Measured, NcclTests, is_nccl_tests, read_nccl_tests
from ccl_bench.storage.files import MIB, read_text
from ccl_bench.whatif.meetings import MESSAGES
from ccl_bench.whatif.run_graph import OWN, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.whatif.event_graph import Numbers, Times
    from ccl_bench.whatif.run_graph import RunGraph
    from ccl_bench.whatif.run_replays import RunReplays

_MOST_KEPT = 0.01
"""Largest share of the transfers in calls that a network has no time for; above, there is no prediction.

Lengths of a loss or a norm are such calls; a table of large messages does not hold them.
"""

_Z = 1.2816
"""Standard deviations from the median to the tenth percentile of a normal distribution."""


@dataclass(frozen=True)
class Line:
    """The Hockney model of one kind of call."""

    alpha_s: float
    beta_s_per_byte: float
    error_ratio: float
    """Mean relative error at sizes that the fit had not seen; NaN with two sizes."""

    def time_s(self, sizes: Times) -> Times:
        """Return the time of calls of some sizes, bytes."""
        times: Times = self.alpha_s + self.beta_s_per_byte * sizes
        return times


def fit_line(sizes: Times, times: Times) -> Line | None:
    """Return the line with the least squares of relative errors; None if it does not rise, or of one size.

    Absolute errors would let the largest messages alone decide, which are a thousand times as long.
    """
    line = _least_squares(sizes, times)
    if line is None:
        return None
    distinct = np.unique(sizes)
    errors = []
    for size in distinct if len(distinct) > 2 else ():
        others = sizes != size
        without = _least_squares(sizes[others], times[others])
        if without is None:
            return None
        errors.append(np.mean(np.abs(without.time_s(sizes[~others]) / times[~others] - 1)))
    return replace(line, error_ratio=float(np.mean(errors)) if errors else np.nan)


def _least_squares(sizes: Times, times: Times) -> Line | None:
    if len(np.unique(sizes)) < 2:
        return None
    columns = np.stack([1 / times, sizes / times], axis=1)
    alpha, beta = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)[0].tolist()
    if alpha < 0:  # no message takes less than no time
        alpha, beta = 0.0, float(columns[:, 1].sum() / (columns[:, 1] ** 2).sum())
    return Line(alpha, beta, np.nan) if beta > 0 else None


def interpolation_error(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the mean relative error of each inner size if it is interpolated from the others."""
    errors = [
        time_at(sizes[at], [*sizes[:at], *sizes[at + 1 :]], [*times[:at], *times[at + 1 :]]) / times[at] - 1
        for at in range(1, len(sizes) - 1)
    ]
    return float(np.mean(np.abs(errors))) if errors else 0.0


class Network(Protocol):
    """Times of calls on a network."""

    def time_s(self, kind: Kind, size_bytes: int) -> tuple[float, float]:
        """Return the time of a call, s, and its relative error; NotMeasurable if unknown."""


@dataclass(frozen=True)
class Kind:
    """What has one latency and bandwidth: a collective over a group inside or between nodes."""

    collective: str
    members: int
    spans_nodes: bool | None

    @property
    def factor(self) -> float | None:
        """Bus-bandwidth factor, None if it has none."""
        return known_bus_factor(self.collective, self.members)


@dataclass(frozen=True)
class HockneyNetwork:
    """A network given by its latency and bus bandwidth."""

    name: str
    alpha_s: float
    bus_bandwidth: float
    """byte/s"""

    def time_s(self, kind: Kind, size_bytes: int) -> tuple[float, float]:
        """Return the time of the Hockney model; its error is unknown and counts as 0."""
        if not kind.factor:
            raise NotMeasurable(f"{kind.collective} has no bus bandwidth", fix="give a table of it")
        return self.alpha_s + size_bytes * kind.factor / self.bus_bandwidth, 0.0


@dataclass(frozen=True)
class TableNetwork:
    """A network given by measured times."""

    name: str
    tests: NcclTests

    def time_s(self, kind: Kind, size_bytes: int) -> tuple[float, float]:
        """Return the measured time, between two sizes on a line of their logarithms."""
        calls = pl.DataFrame(
            {
                "collective": [kind.collective],
                "size": [kind.members],
                "spans_nodes": pl.Series([kind.spans_nodes], dtype=pl.Boolean),
                "size_bytes": [size_bytes],
                "bus_factor": pl.Series([kind.factor], dtype=pl.Float64),
            }
        )
        time_ns, lacks = with_ceiling(calls, self.tests).select("ceiling_ns", "lacks").row(0)
        if lacks:
            raise NotMeasurable(f"{self.name}: {lacks}", fix=_measure(kind))
        curve = {
            one.size_bytes: one.time_s
            for one in self.tests.measured
            if (one.collective, one.ranks) == (kind.collective, kind.members)
        }
        ordered = sorted(curve)
        error = interpolation_error(ordered, [curve[size] for size in ordered])
        return time_ns / 1e9, error


@dataclass(frozen=True)
class ReferenceNetwork:
    """The links of a device in the catalog of clean measurements."""

    name: str
    device: str
    per_node: int | None
    """Largest group inside one node."""

    def time_s(self, kind: Kind, size_bytes: int) -> tuple[float, float]:
        """Return the measured time of NCCL over a group of that size inside one node."""
        if self.per_node and kind.members > self.per_node:
            message = f"{self.name} joins {self.per_node} devices, and a group has {kind.members}"
            raise NotMeasurable(message, fix=_measure(kind))
        curve = reference_curve(self.device, kind.collective, kind.members, spans_nodes=kind.spans_nodes)
        return curve.time_s(size_bytes), interpolation_error(curve.sizes, curve.times_s)


def _measure(kind: Kind) -> str:
    """Return the command that measures calls of a kind, for this option."""
    command = measurement(kind.collective, kind.members, spans_nodes=kind.spans_nodes)
    return command.replace("on these machines", "on that network").replace("--ceiling", "--network")


_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_ALPHA = re.compile(rf"alpha=({_NUMBER})\s*(ns|us|µs|ms|s)?")
_BANDWIDTH = re.compile(rf"B=({_NUMBER})\s*(GB/s|MB/s|Gbit/s|Gb/s)?")
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_RATES = {"GB/s": 1e9, "MB/s": 1e6, "Gbit/s": 1e9 / 8, "Gb/s": 1e9 / 8}
_NVLINK = re.compile(r"(.+?)-nvlink(\d*)", re.IGNORECASE)

_FIX = (
    "write H100-NVLink8, alpha=5us,B=200GB/s, or the name of a file that nccl-tests printed or of a CSV table"
)


def parse_network(text: str) -> Network:
    """Return the network of a notation: a device's links, `alpha=…,B=…`, or a file of measured times.

    Without units alpha is in µs and B in GB/s. Raises UsageError for other text, InputError for a bad file.
    """
    parts = [part.strip() for part in text.split(",")]
    if text.startswith(("alpha=", "B=")):
        alphas, rates = (
            [pattern.fullmatch(part) for part in sorted(parts)] for pattern in (_ALPHA, _BANDWIDTH)
        )
        alpha, rate = alphas[-1], rates[0]
        if len(parts) != 2 or not alpha or not rate or not 0 < float(rate[1]) < np.inf:
            raise UsageError(f"{text!r} is not a latency and a bandwidth", fix="write alpha=5us,B=200GB/s")
        return HockneyNetwork(
            text, float(alpha[1]) * _TIMES[alpha[2] or "us"], float(rate[1]) * _RATES[rate[2] or "GB/s"]
        )
    link = _NVLINK.fullmatch(text)
    device = next((name for name in ((f"{link[1]} SXM", link[1]) if link else (text,)) if system(name)), None)
    path = storage.to_path(text)
    if device is not None and not path.exists():
        return ReferenceNetwork(text, device, int(link[2]) if link and link[2] else None)
    if not path.exists():
        raise UsageError(f"there is no network and no file {text!r}", fix=_FIX)
    return TableNetwork(path.name, read_times(path))


_MAX_BYTES = 64 * MIB


def read_times(path: Path) -> NcclTests:
    """Return measured times of a file: output of nccl-tests, or a CSV table with a header.

    Columns of a CSV table: `size` (bytes) and `time` with a unit, as `size(B),time(ns)` or `time_us`; also
    `collective` (all_reduce if absent) and `ranks`, which `busbw(GB/s)` shows as well. Raises InputError.
    """
    text = read_text(path, _MAX_BYTES)
    if is_nccl_tests(text[:MIB].encode()):
        reading = read_nccl_tests(path)
        if not reading.value.measured:
            message = reading.issues[0].message if reading.issues else "holds no measured size"
            raise InputError(message, where=str(path), fix="give what all_reduce_perf and the like print")
        return reading.value
    rows = list(csv.reader(text.splitlines()))
    head = [re.sub(r"[\s()_]+", " ", name).strip().lower() for name in rows[0]] if rows else []
    units = {f"time {unit}": scale for unit, scale in _TIMES.items()}
    columns = {name: at for at, name in reversed([*enumerate(head)])}
    size_at = next((columns[name] for name in ("size b", "size bytes", "size") if name in columns), None)
    times = [(at, units[name]) for at, name in enumerate(head) if name in units]
    if size_at is None or not times:
        fix = "name its columns, with units, such as size(B),time(us),ranks,collective"
        raise InputError("is no table of sizes and times", where=str(path), fix=fix)
    measured = []
    for number, row in enumerate(rows[1:], start=2):
        if not any(row):
            continue
        try:
            size = int(float(row[size_at]))
            time_s = min(float(row[at]) * unit for at, unit in times)
            collective = row[columns["collective"]].strip() if "collective" in columns else "all_reduce"
            ranks = int(row[columns["ranks"]]) if "ranks" in columns else _ranks(columns, row, size, times[0])
        except (ValueError, LookupError, ArithmeticError) as error:
            fix = "give size and time as numbers, and ranks or busbw(GB/s) of each row"
            raise InputError(f"line {number} is no measured size", where=str(path), fix=fix) from error
        if size <= 0 or not 0 < time_s < np.inf or ranks < 2:
            raise InputError(
                f"line {number} is no measured size", where=str(path), fix="correct or remove it"
            )
        measured.append(Measured(collective, ranks, None, size, time_s))
    if not measured:
        raise InputError("holds no measured size", where=str(path), fix="give a table with rows")
    return NcclTests(_one_group(measured), files=(path.name,))


def _ranks(columns: dict[str, int], row: Sequence[str], size: int, time: tuple[int, float]) -> int:
    """Return the ranks of an all-reduce by its factor, bus over algorithm bandwidth: 2 (n - 1) / n."""
    factor = float(row[columns["busbw gb/s"]]) * 1e9 * float(row[time[0]]) * time[1] / size
    return round(2 / (2 - factor))


def _one_group(measured: list[Measured]) -> tuple[Measured, ...]:
    """Return the rows, all of the most frequent number of ranks if rounded bandwidths show others."""
    counts = [one.ranks for one in measured]
    usual = max(set(counts), key=counts.count)
    return tuple(replace(one, ranks=usual) if abs(one.ranks - usual) == 1 else one for one in measured)


@dataclass(frozen=True)
class _Calls:
    """Meetings of ranks of known size, and the operations in each."""

    table: pl.DataFrame
    """One row a meeting: `meeting`, `collective`, `members`, `spans_nodes`, `dimension`, `size_bytes`,
    `moved_s` and `is_whole`."""
    rows: Numbers
    """Operations."""
    at: Numbers
    """For each operation the row of its meeting."""

    def kinds(self) -> Iterable[tuple[Kind, Numbers]]:
        """Yield each kind of call and the rows of its meetings."""
        numbered = self.table.with_row_index("number")
        for key, part in numbered.group_by("collective", "members", "spans_nodes", maintain_order=True):
            yield Kind(*key), part["number"].to_numpy()


def _sized_calls(graph: RunGraph, facts: Facts) -> _Calls:
    """Return the calls whose size is recorded; raise NotMeasurable if there is none."""
    is_message = pl.col("collective").is_in(MESSAGES)
    operations = graph.operations.select(
        "row", "rank", "step", "dimension", "size", "size_bytes",
        pl.col("collective").cast(pl.String), meeting=pl.Series(graph.meets),
        moved=pl.Series(graph.values[OWN:-1:VALUES]) / 1e9,
    ).filter(pl.col("meeting") >= 0)  # fmt: skip
    together = operations.group_by("meeting", maintain_order=True).agg(
        pl.when(is_message.first())
        .then(pl.lit("send_recv"))
        .otherwise(pl.col("collective").first())
        .alias("collective"),
        pl.col("rank").drop_nulls().unique().sort().alias("ranks"),
        pl.when(is_message.first()).then(2).otherwise(pl.col("size").max()).cast(pl.Int64).alias("members"),
        pl.col("dimension").first(),
        pl.col("size_bytes").max(),
        pl.col("moved").filter(pl.col("moved") > 0).median().alias("moved_s"),
        pl.col("step").is_not_null().all().alias("in_step"),
    )
    sized = together.filter(pl.col("size_bytes") > 0, pl.col("members") > 1).drop_nulls(
        ["moved_s", "collective"]
    )
    if sized.is_empty():
        fix = "record all ranks and the arguments of calls: NCCL with torch 2.5 or later, or Execution Traces"
        raise NotMeasurable("no call is matched across ranks and has a recorded size and group", fix=fix)
    reaches = [spans_nodes(ranks, facts) for ranks in sized["ranks"].to_list()]
    table = sized.with_columns(
        pl.Series("spans_nodes", reaches, dtype=pl.Boolean),
        is_whole=pl.col("ranks").list.len() >= pl.col("members"),
    ).with_row_index("at")
    members = operations.join(table.select("meeting", "at"), on="meeting", maintain_order="left")
    return _Calls(table, members["row"].to_numpy(), members["at"].cast(pl.Int64).to_numpy())


@dataclass(frozen=True)
class _Model:
    """The model of the run's own calls of one kind."""

    kind: Kind
    at: Numbers
    sizes: Times
    times: Times
    line: Line | None

    def own_s(self) -> Times:
        """Return the time that the model gives each call: the line, else the median of its size."""
        if self.line:
            return self.line.time_s(self.sizes)
        medians = np.empty_like(self.times)
        for size in np.unique(self.sizes):
            alike = self.sizes == size
            medians[alike] = np.median(self.times[alike])
        return medians


def _models(calls: _Calls) -> list[_Model]:
    models = []
    for kind, at in calls.kinds():
        rows = calls.table[at]
        sizes, times = (rows[name].to_numpy().astype(np.float64) for name in ("size_bytes", "moved_s"))
        free = rows["is_whole"].to_numpy() & rows["in_step"].to_numpy()
        line = fit_line(sizes[free], times[free]) if kind.factor and free.any() else None
        models.append(_Model(kind, at, sizes, times, line))
    return models


def predict_on_network(
    name: str,
    replays: RunReplays,
    facts: Facts,
    unexplained: float,
    network: str | None,
    *,
    doubling: bool = False,
) -> Prediction:
    """Return the step of a run whose calls go over another network, and the worth of twice the bandwidth.

    Raises NotMeasurable if the run states no sizes, or the network has no time for one of its kinds of call.
    """
    calls = _sized_calls(replays.run, facts)
    models = _models(calls)
    (recorded_s,) = replays.steps_s([replays.recorded])
    answer = Prediction(
        run=name,
        configuration={"network": network or "as recorded"},
        recorded={"step_s": _quantiles(recorded_s, recorded_s, recorded_s)},
        step_s=_quantiles(recorded_s, recorded_s, recorded_s),
        unexplained=unexplained,
        findings=[*replays.findings],
        links=[
            FittedLink(
                model.kind.collective, model.kind.members, model.kind.spans_nodes, model.line.alpha_s,
                model.kind.factor / model.line.beta_s_per_byte, len(model.at), model.line.error_ratio,
            )
            for model in models
            if model.line and model.kind.factor
        ],
    )  # fmt: skip
    if network:
        answer = _moved(answer, replays, calls, models, parse_network(network), recorded_s)
    if doubling:
        worth, bounds = _doubled(replays, calls, models, recorded_s)
        findings = [*answer.findings]
        if bounds:
            message = (
                f"{counted(bounds, 'kind')} of call has one size, so that its latency is unknown and counts "
                "as 0: the gain of twice the bandwidth is an upper bound"
            )
            findings.append(Finding("latency-unknown", "note", message, count=bounds))
        answer = replace(answer, doubling=worth, findings=findings)
    return answer


def _moved(
    answer: Prediction,
    replays: RunReplays,
    calls: _Calls,
    models: list[_Model],
    network: Network,
    recorded_s: Times,
) -> Prediction:
    """Return the answer with the step on a network, and the change of each kind of call."""
    reaches = {model.kind.spans_nodes for model in models}
    if isinstance(network, HockneyNetwork) and {True, False} <= reaches:
        message = (
            "its calls go both inside and between nodes, and one latency and bandwidth describe one link"
        )
        raise NotMeasurable(message, fix="give a table of nccl-tests for both")
    ratio, error = np.ones(calls.table.height), np.zeros(calls.table.height)
    changes, kept = [], []
    for model in models:
        own_s = model.own_s()
        own_error = model.line.error_ratio if model.line and np.isfinite(model.line.error_ratio) else 0.0
        for size in np.unique(model.sizes):
            alike = model.sizes == size
            try:
                time_s, error_ratio = network.time_s(model.kind, int(size))
            except NotMeasurable as why:
                kept.append((float(model.times[alike].sum()), why))
                continue
            ratio[model.at[alike]] = time_s / own_s[alike]
            error[model.at[alike]] = np.hypot(error_ratio, own_error)
        rows = calls.table[model.at].with_columns(predicted=pl.Series(model.times * ratio[model.at]))
        for (dimension,), part in rows.group_by("dimension", maintain_order=True):
            kind = model.kind
            changes.append(
                CallChange(
                    kind.collective, kind.members, kind.spans_nodes, str(dimension), part.height,
                    int(np.median(part["size_bytes"].to_numpy())), float(part["moved_s"].sum()),
                    float(part["predicted"].sum()),
                )
            )  # fmt: skip
    findings = [*answer.findings]
    if kept:
        kept_s, (_, most) = sum(took for took, _ in kept), max(kept, key=lambda each: each[0])
        share = kept_s / float(calls.table["moved_s"].sum())
        if share > _MOST_KEPT:
            raise most
        message = f"calls of {100 * share:.2f} % of the transfers keep their recorded time: {most.message}"
        findings.append(Finding("calls-kept", "note", message, count=len(kept)))
    factors = [ratio * np.exp(z * error) for z in (-_Z, 0, _Z)]
    fast, usual, slow = replays.steps_s(_with_transfers(replays, calls, each) for each in factors)
    return replace(
        answer,
        step_s=_quantiles(fast, usual, slow),
        gain_s=float(np.median(recorded_s) - np.median(usual)),
        calls=changes,
        findings=findings,
    )


def _with_transfers(replays: RunReplays, calls: _Calls, ratio: Times) -> Times:
    """Return the variant in which the transfers of calls change by a ratio for each meeting."""
    values = replays.recorded.copy()
    values[calls.rows * VALUES + OWN] *= ratio[calls.at]
    return values


def _quantiles(fast: Times, usual: Times, slow: Times) -> dict[str, float]:
    """Return quantiles of steps; the outer ones of steps with faster and slower calls."""
    return {
        "p10": float(np.quantile(fast, 0.1)),
        "p50": float(np.median(usual)),
        "p90": float(np.quantile(slow, 0.9)),
    }


def _doubled(
    replays: RunReplays, calls: _Calls, models: list[_Model], recorded_s: Times
) -> tuple[list[Doubling], int]:
    """Return what twice the bandwidth gains for each reach and dimension, and the kinds without latency."""
    ratio = np.ones(calls.table.height)
    for model in models:
        alpha = model.line.alpha_s if model.line else 0.0
        beta = model.line.beta_s_per_byte if model.line else model.own_s() / model.sizes
        ratio[model.at] = (alpha + beta * model.sizes / 2) / (alpha + beta * model.sizes)
    reach = np.array([REACHES[each] for each in calls.table["spans_nodes"].to_list()])
    dimension = calls.table["dimension"].fill_null("unknown").to_numpy().astype(np.str_)
    links = [(name, reach == name) for name in np.unique(reach).tolist()]
    links += [(name, dimension == name) for name in np.unique(dimension).tolist() if name != "unknown"]
    variants = (_with_transfers(replays, calls, np.where(mask, ratio, 1.0)) for _, mask in links)
    worth = []
    for (name, _), steps in zip(links, replays.steps_s(variants), strict=True):
        gain = float(recorded_s.mean() - steps.mean())
        worth.append(Doubling(name, gain, gain / float(recorded_s.mean())))
    return worth, sum(model.line is None for model in models)
