"""The metric `decode_period`: time from one decode pass to the next in steady state, and its parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.bandwidth import collective_transfers
from ccl_bench.analysis.communication.calls import TRANSFER, UNKNOWN, WAITING
from ccl_bench.analysis.serving.benchmark import benchmark_of, times_per_output_token
from ccl_bench.analysis.serving.forward_passes import DECODE, DRAFT
from ccl_bench.analysis.serving.pass_windows import BETWEEN, GIVES_TOKENS, RAMP, STEADY
from ccl_bench.analysis.statistics import spread
from ccl_bench.base.errors import NotMeasurable, NoValue
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import by_rank, ranks_in
from ccl_bench.metrics.shared.reference import reference_system, with_reference
from ccl_bench.metrics.shared.serving import pass_times
from ccl_bench.metrics.tpot import TPOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.analysis.facts import CommunicationLibrary, Facts
    from ccl_bench.side_files import NcclTests

_PASS = ["trace", "step"]
_DIVIDED = (TRANSFER, WAITING)

PIECES = {
    "kernels": "compute_ns",
    **{part: f"{part}_ns" for part in _DIVIDED},
    "communication": f"{UNKNOWN}_ns",
    "copies": "exposed_memory_ns",
    "host_between_passes": "host_between_ns",
    "host_in_passes": "host_inside_ns",
    "gaps_between_kernels": "queued_ns",
    "other_idle": "other_idle_ns",
}
"""Piece of a decode pass → its column; what prefill passes of other requests add follows from the whole."""

OTHER_PASSES = "prefill_of_others"

_WORDS = {
    "kernels": "kernels",
    TRANSFER: "{calls}{speed}",
    WAITING: "waiting in {calls}",
    "communication": "{calls}, waiting included",
    "copies": "copies",
    "host": "host",
    "gaps_between_kernels": "gaps between kernels",
    "other_idle": "idle for another reason",
    OTHER_PASSES: "prefill of other requests",
    "outside": "outside of the passes",
}

_NAMED = 0.01
"""Share of the whole from which the sentence names a piece."""

_EPOCH_NS = 1_000_000_000 * SECOND_NS
"""Least time that counts from 1970, ns: 2001. Clocks that count from the start of a machine show less."""

_SLOWER = 0.02
"""Share by which the passes of a trace may exceed the client's time per token without a finding.

The client's mean over requests and the mean over passes differ by that where answers end at different times.
"""

LAST_FIX = "record more passes, with the load of the benchmark running"


@metric(unit="s", better="lower", applies=(checks.inference,))
def decode_period(
    forward_passes: pl.DataFrame,
    pass_windows: pl.DataFrame,
    pass_breakdown: pl.DataFrame,
    facts: Facts,
    pass_communication: pl.DataFrame | None = None,
    matched: pl.DataFrame | None = None,
    groups: pl.DataFrame | None = None,
    devices: pl.DataFrame | None = None,
    nccl_tests: NcclTests | None = None,
    communication_library: CommunicationLibrary | None = None,
    requests: pl.DataFrame | None = None,
    serving_statistics: pl.DataFrame | None = None,
) -> Measurement:
    """Mean time from one pass that gives the running requests a token to the next, in steady state.

    Formula:
        decode_period = time in steady state / passes that decode or mix, mean over ranks
                      = kernels + transfer + waiting + communication of either kind + copies
                      + host (between passes, in passes) + gaps between kernels + other idle time
                      + prefill of other requests

        Pieces but the last are of the mean decode pass, from its start on the device to the start of the next
        pass. The last is what passes that prefill or mix add to the mean time between tokens.

    Caveats:
        Steady state leaves out the passes in which the batch fills or drains: before the first and after the
        last with 90 % of the usual batch, the median over tokens of the requests in their pass. The time
        between two passes after which all requests may be new is left out too. The details count both.
        Host is idle time that ends with work launched during it, as in `idle_breakdown`. Kernels of a CUDA
        graph share its launch, so that gaps inside a replay are gaps between kernels. If the run also holds
        the result of a benchmark, the details divide the client's TPOT into the pieces; the rest of it is
        outside of the passes (queueing, network, tokenisation, batches that the trace does not show). They
        do not if drafts give several tokens a pass, if pipeline stages take passes of several batches, if
        the clocks show that trace and benchmark are not of one time, or if the traced passes are slower than
        TPOT. The profiler slows the server down.

    Reference:
        Windows tile the trace as steps do (torch-tb-profiler, OverallParser); gaps by cause as in
        HolisticTraceAnalysis, `get_idle_time_breakdown`; TPOT as in `vllm bench serve`.
    """
    if pass_windows.is_empty():
        pass_times(forward_passes, DECODE)
        reason = "no pass of the traces is timed on the device and followed by another one"
        raise NotMeasurable(reason, fix=LAST_FIX)
    windows = pass_windows.join(pass_breakdown, on=_PASS, how="left", maintain_order="left").with_columns(
        _exposed_parts(pass_windows, pass_communication)
    )
    divided = pl.col(f"{TRANSFER}_ns") + pl.col(f"{WAITING}_ns")
    windows = windows.with_columns((pl.col("exposed_communication_ns") - divided).alias(f"{UNKNOWN}_ns"))
    steady = windows.filter(pl.col("state") == STEADY)
    is_decode = pl.col("phase") == DECODE
    of_trace = ["rank", pl.when(pl.col("rank").is_null()).then("trace").alias("unranked")]
    per_rank = (
        steady.group_by(of_trace, maintain_order=True)
        .agg(
            (pl.col(column).filter(is_decode).mean() / SECOND_NS).alias(piece)
            for piece, column in (PIECES | {"decode_pass": "length_ns"}).items()
        )
        .join(
            steady.group_by(of_trace).agg(
                s=pl.col("length_ns").sum() / pl.col("phase").is_in(GIVES_TOKENS).sum() / SECOND_NS
            ),
            on=["rank", "unranked"],
            nulls_equal=True,
            maintain_order="left",
        )
        .drop_nulls("kernels")
        .with_columns((pl.col("s") - pl.col("decode_pass")).alias(OTHER_PASSES))
    )
    if per_rank.is_empty():
        counts = _counts(windows, "state")
        reason = f"no pass that only decodes is in steady state: the traces hold {counts}"
        raise NotMeasurable(reason, fix=LAST_FIX)
    value = _mean(per_rank, "s")
    pieces = {piece: _mean(per_rank, piece) for piece in (*PIECES, OTHER_PASSES)}
    decoding = steady.filter(is_decode)
    collectives = _collectives(decoding, pass_communication)
    speed: dict[str, Any] = {}
    if collectives:
        speed = _speed(decoding, matched, groups, facts, devices, nccl_tests, communication_library)
    details: dict[str, Any] = {
        "pieces_s": pieces,
        "pieces_pct": {piece: 100 * time / value for piece, time in pieces.items()},
        "decode_pass_s": _mean(per_rank, "decode_pass"),
        "per_rank_s": by_rank(per_rank, "s"),
        "distribution_s": spread((decoding["length_ns"] / SECOND_NS).to_list()),
        "requests_in_a_pass": spread(decoding["requests"].cast(pl.Float64).to_list()),
        **_tokens(decoding),
        "passes": {str(phase): count for phase, count in steady.group_by("phase").len().sort("phase").rows()},
        "passes_left_out": {
            state: windows.filter(pl.col("state") == state).height for state in (RAMP, BETWEEN)
        },
        "passes_with_graphs": decoding.filter(pl.col("graphs") > 0).height,
        "exposed_communication_s": collectives,
        **speed,
    }
    client, findings = _client(value, windows, forward_passes, facts, requests, serving_statistics)
    sentence = _sentence(value, pieces, client, collectives, speed)
    return Measurement(
        value,
        {"sentence": sentence, **details, **({"client": client} if client else {})},
        window="decode passes of the traces, in steady state",
        ranks=ranks_in(per_rank),
        findings=findings,
    )


def _mean(table: pl.DataFrame, column: str) -> float:
    return float(table.select(pl.col(column).mean()).item())


def _counts(windows: pl.DataFrame, column: str) -> str:
    counts = windows.group_by(column, "phase").len().sort(column, "phase").rows()
    return ", ".join(f"{count} {phase} ({state})" for state, phase, count in counts)


def _tokens(decoding: pl.DataFrame) -> dict[str, Any]:
    generated = decoding["generated"].drop_nulls().cast(pl.Float64).to_list()
    return {"tokens_in_a_pass": spread(generated)} if generated else {}


def _exposed_parts(windows: pl.DataFrame, parts: pl.DataFrame | None) -> list[pl.Series]:
    """Return for each window its exposed transfer and waiting, ns."""
    if parts is None:
        return [pl.Series(f"{part}_ns", [0]).new_from_index(0, windows.height) for part in _DIVIDED]
    sums = parts.group_by(_PASS).agg(
        pl.col("exposed_ns").filter(pl.col("part") == part).sum().alias(f"{part}_ns") for part in _DIVIDED
    )
    joined = windows.select(_PASS).join(sums, on=_PASS, how="left", maintain_order="left")
    return [joined[f"{part}_ns"].fill_null(0) for part in _DIVIDED]


def _collectives(decoding: pl.DataFrame, parts: pl.DataFrame | None) -> dict[str, float]:
    """Return {collective: its exposed time in a decode pass, mean over passes and ranks, s}."""
    if parts is None:
        return {}
    inside = parts.join(decoding.select(_PASS), on=_PASS, how="semi")
    sums = inside.group_by("collective").agg(pl.col("exposed_ns").sum()).filter(pl.col("exposed_ns") > 0)
    ordered = sums.sort("exposed_ns", "collective", descending=[True, False])
    return {name: time / decoding.height / SECOND_NS for name, time in ordered.rows()}


def _speed(
    decoding: pl.DataFrame,
    matched: pl.DataFrame | None,
    groups: pl.DataFrame | None,
    facts: Facts,
    devices: pl.DataFrame | None,
    tests: NcclTests | None,
    library: CommunicationLibrary | None,
) -> dict[str, Any]:
    """Return the speed of the collectives of decode passes relative to their reference, for details."""
    if matched is None or groups is None:
        return {}
    spans = decoding.select("trace", from_ns="device_start_ns", until_ns="device_end_ns").sort("from_ns")
    placed = matched.sort("start_ns").join_asof(
        spans, left_on="start_ns", right_on="from_ns", by="trace", strategy="backward", check_sortedness=False
    )
    inside = placed.filter(pl.col("start_ns") < pl.col("until_ns"))
    timed = collective_transfers(inside.filter(pl.col("present") >= pl.col("size")), groups)
    moving = timed.drop_nulls("bus_factor")
    if moving.is_empty():
        return {"without_reference": "no collective of which all members were recorded, with its size"}
    system = reference_system(facts, devices, library)
    looked_up = with_reference(moving, tests, system)
    compared = looked_up.drop_nulls("reference_ns")
    if compared.is_empty():
        return {"without_reference": str(looked_up["lacks"][0])}
    by_collective = compared.group_by("collective").agg(
        pct=100 * pl.col("reference_ns").sum() / pl.col("time_ns").sum()
    )
    return {"efficiency_pct": dict(by_collective.sort("collective").rows())}


def _client(
    period_s: float,
    windows: pl.DataFrame,
    forward_passes: pl.DataFrame,
    facts: Facts,
    requests: pl.DataFrame | None,
    statistics: pl.DataFrame | None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the comparison with the client's TPOT for details, and findings; nothing without a benchmark."""
    if requests is None or statistics is None:
        return {}, []
    try:
        benchmark = benchmark_of(requests, statistics)
        if benchmark is None:
            return {}, []
        tpot_s = TPOT(requests, statistics).value
    except NoValue as error:
        return {"not_compared": error.message}, []
    about: dict[str, Any] = {"tpot_s": tpot_s}
    begin, end = windows.select(pl.col("device_start_ns").min(), pl.col("device_end_ns").max()).row(0)
    sent, done = benchmark.ok.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    if begin > _EPOCH_NS and sent is not None and done is not None and sent > _EPOCH_NS:
        if end <= sent or begin >= done:
            reason = "by their clocks, the trace and the benchmark are not of the same time"
            message = f"{reason}: TPOT is not divided into the parts of a pass"
            return about | {"not_compared": reason}, [_finding("benchmark-apart", message)]
        about["trace_from_s"], about["trace_until_s"] = (
            (at - sent) / SECOND_NS for at in (max(begin, sent), min(end, done))
        )
        meanwhile = (pl.col("start_ns") < end) & (pl.col("end_ns") > begin)
        if values := times_per_output_token(benchmark.ok.filter(meanwhile)):
            about["requests_meanwhile"] = len(values)
            tpot_s = about["tpot_meanwhile_s"] = math.fsum(values) / len(values)
    else:
        about["clocks"] = "not comparable: whether the trace is of the benchmark's time is unknown"
    drafts = (forward_passes["phase"] == DRAFT).any() or (windows["mode"] == "TARGET_VERIFY").any()
    several = (windows["generated"] > windows["requests"]).any()
    if drafts or several:
        reason = "a pass of speculative decoding gives several tokens, and the trace does not show how many"
    elif facts.pp and facts.pp.value > 1:
        reason = f"{facts.pp.value} pipeline stages work on several batches at a time (pp, {facts.pp.source})"
    elif period_s > tpot_s * (1 + _SLOWER):
        reason = (
            f"the passes of the trace are {1000 * period_s:.3g} ms apart, and the client's time per token is "
            f"{1000 * tpot_s:.3g} ms: the profiler slowed the server, or the trace is of another load"
        )
        return about | {"not_compared": reason}, [_finding("traced-passes-slower", reason)]
    else:
        return about | {"divided_s": tpot_s, "outside_of_passes_s": tpot_s - period_s}, []
    return about | {"not_compared": reason}, []


def _finding(code: str, message: str) -> Finding:
    return Finding(code, "warning", message, touches=("pass_windows",))


def _sentence(
    period_s: float,
    pieces: Mapping[str, float],
    client: Mapping[str, Any],
    collectives: Mapping[str, float],
    speed: Mapping[str, Any],
) -> str:
    """Return the whole and its pieces in words; those below 1 % together."""
    shown = dict(pieces) | {"host": pieces["host_between_passes"] + pieces["host_in_passes"]}
    whole, name = period_s, "A token every"
    if "divided_s" in client:
        whole, name = client["divided_s"], "TPOT"
        shown["outside"] = client["outside_of_passes_s"]
    calls = next(iter(collectives)).replace("_", "-") if len(collectives) == 1 else "collectives"
    efficiency = speed.get("efficiency_pct", {})
    only = next(iter(efficiency.values())) if len(efficiency) == len(collectives) == 1 else None
    reached = f" ({only:.0f} % of its reference)" if only is not None else ""
    named = {piece: shown[piece] for piece in _WORDS if abs(shown.get(piece, 0.0)) >= _NAMED * whole}
    texts = [
        f"{1000 * time:.3g} ms {_WORDS[piece].format(calls=calls, speed=reached)}"
        for piece, time in named.items()
    ]
    rest = whole - math.fsum(named.values())
    texts += [f"{1000 * rest:.2g} ms other"] if rest >= _NAMED * whole else []
    return f"{name} {1000 * whole:.3g} ms: {', '.join(texts)}"
