"""The metric `exposed_communication_time`, and its parts: waiting for late ranks and transfer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.calls import (
    DISAGREES,
    MEMBERS_LACK,
    NO_OTHER,
    NO_STEP,
    SHOWS_NONE,
    STEP_LACKS,
    TRANSFER,
    UNKNOWN,
    WAITING,
)
from ccl_bench.analysis.communication.matching import MESSAGES
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.checks import need_communication
from ccl_bench.metrics.shared.per_step import mean_of, seconds, seconds_by, shares_by_rank, time_per_step
from ccl_bench.metrics.shared.waiting import divided, of_steps, parts_by_rank, parts_by_step, parts_in_seconds
from ccl_bench.schema.table import keep_rows

if TYPE_CHECKING:
    from ccl_bench.metrics import Measurement


@metric(unit="s", better="lower", applies=(checks.several_ranks,), revision=3)
def exposed_communication_time(
    breakdown: pl.DataFrame,
    exposed_calls: pl.DataFrame,
    steps: pl.DataFrame,
    communication_parts: pl.DataFrame | None = None,
) -> Measurement:
    """Time in one step in which a GPU communicated and did not compute.

    Formula:
        exposed_communication_time = |U(communication) - U(compute)| in a step, mean over steps and ranks

    Caveats:
        It includes waiting for late peers: the details divide it into `exposed_wait_time`,
        `exposed_transfer_time` and unknown. It also includes communication that nothing waits for.
        Concurrent copies do not hide it. In the details by collective, time in which several calls ran is
        assigned to the call that started first, so that the parts add up.

    Reference:
        `exposed_comm_time` of AMD TraceLens, clipped to steps.
    """
    need_communication(breakdown, steps)
    exposed = exposed_calls.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("exposed_ns"))
    details: dict[str, Any] = {
        "per_collective_s": seconds_by(exposed, steps, "collective", "exposed_ns"),
        "pct_of_step": mean_of(shares_by_rank(breakdown, "exposed_communication_ns", "window_ns"), "pct"),
        "pct_of_communication": mean_of(
            shares_by_rank(breakdown, "exposed_communication_ns", "communication_ns"), "pct"
        ),
    }
    if communication_parts is not None:
        parts = of_steps(communication_parts, steps)
        each = divided(breakdown, parts, "exposed_communication_ns")
        details |= {
            "parts_s": parts_in_seconds(each, steps),
            "per_step_parts_s": parts_by_step(each, steps),
            "per_rank_parts_s": parts_by_rank(each, steps),
        }
    return time_per_step(breakdown, steps, "exposed_communication_ns", details)


@metric(unit="s", better="lower", applies=(checks.several_ranks,))
def exposed_wait_time(
    breakdown: pl.DataFrame, communication_parts: pl.DataFrame, steps: pl.DataFrame
) -> Measurement:
    """Time in one step in which a GPU only waited in communication for late ranks.

    Formula:
        exposed_wait_time = |U(waiting) - U(transfer) - U(unknown) - U(compute)| in a step, mean over steps
        and ranks
        waiting of a call = its first (duration - shortest duration of a member) ns

        exposed_communication_time = exposed_wait_time + exposed_transfer_time + what is unknown

    Caveats:
        A faster network does not shorten it; ranks that arrive at the same time do. Waits need no common
        clock. The shorter side of a message is taken as its transfer, and the longer side waits before
        that; if both sides wait, the common wait is counted as transfer (`of_messages_s` states how much is
        in messages). Calls that no other rank recorded, broadcasts, batches of messages and uneven
        all-to-alls are unknown. If members of a group have no trace, waiting is a lower bound and the rest
        is unknown. Where several calls run, transfer has priority, then unknown. If more than half of
        exposed communication is unknown, there is no value.

    Reference:
        Synchronising time of torch-tb-profiler; TraceLens `NcclAnalyser`; clipped to steps.
    """
    return _part_of_exposed(WAITING, breakdown, communication_parts, steps)


@metric(unit="s", better="lower", applies=(checks.several_ranks,))
def exposed_transfer_time(
    breakdown: pl.DataFrame, communication_parts: pl.DataFrame, steps: pl.DataFrame
) -> Measurement:
    """Time in one step in which a GPU moved data in communication and did not compute.

    Formula:
        exposed_transfer_time = |U(transfer) - U(compute)| in a step, mean over steps and ranks
        transfer of a call = its last (shortest duration of a member) ns

        exposed_communication_time = exposed_wait_time + exposed_transfer_time + what is unknown

    Caveats:
        A faster network, smaller messages or more overlap can shorten it. It includes the start and
        synchronisation of the call, so small messages are bound by latency. A transfer is known if all
        members of the call's group were recorded. For a message it is the shorter side: an upper bound
        where both sides wait, and too short where a send returns early (`of_messages_s`). The same calls
        are unknown as in `exposed_wait_time`. If more than half of exposed communication is unknown, there
        is no value.

    Reference:
        Communicating time of torch-tb-profiler without its synchronising time; clipped to steps.
    """
    return _part_of_exposed(TRANSFER, breakdown, communication_parts, steps)


MOSTLY_UNKNOWN = 0.5
"""Unknown share of exposed communication above which the known part is not representative."""

WORTH_SAYING = 0.01
"""Share of exposed communication from which its unknown part, and that in messages, is a finding.

Stragglers and gains below the same share of a step are not reported either.
"""

_FIXES = {
    NO_OTHER: "record groups of collectives: torch 2.2 or later",
    MEMBERS_LACK: "give the traces of all members of each group",
    SHOWS_NONE: "nothing to fix: broadcasts, batches and uneven all-to-alls show no waiting",
    DISAGREES: "check that all traces are of one run and begin with the same call",
    NO_STEP: "record whole steps, and call prof.step() in each",
    STEP_LACKS: "give complete traces: a truncated trace lacks calls",
}


def _part_of_exposed(
    part: str, breakdown: pl.DataFrame, communication_parts: pl.DataFrame, steps: pl.DataFrame
) -> Measurement:
    """Return one part of exposed communication in a step; NotMeasurable if most of that is unknown."""
    need_communication(breakdown, steps)
    parts = of_steps(communication_parts, steps)
    each = divided(breakdown, parts, "exposed_communication_ns")
    unknown = _listed(parts.with_columns(pl.col("reason").fill_null("")), steps, UNKNOWN, "reason")
    reasons = dict(sorted(unknown.items(), key=lambda item: -item[1]))
    findings = []
    unknown_ns, whole_ns = (int(each[name].sum()) for name in (f"{UNKNOWN}_ns", "exposed_communication_ns"))
    unknown_share = unknown_ns / whole_ns if whole_ns else 0.0
    if unknown_share >= WORTH_SAYING:
        reason = next(iter(reasons), NO_OTHER)
        message = (
            f"{100 * unknown_share:.3g} % of exposed communication is neither known waiting nor known "
            f"transfer: {reason}"
        )
        if unknown_share > MOSTLY_UNKNOWN:
            causes = checks.UNMATCHED if reason in {NO_OTHER, MEMBERS_LACK} else ()
            raise NotMeasurable(message, fix=_FIXES[reason], causes=causes)
        message += "; waiting and transfer are lower bounds"
        findings.append(Finding("waiting-unknown", "warning", message, touches=("communication_parts",)))
    message_parts = parts.filter(pl.col("collective").is_in(MESSAGES) & (pl.col("part") == part))
    of_messages = seconds(message_parts, steps, "exposed_ns")
    if of_messages and of_messages >= WORTH_SAYING * seconds(each, steps, "exposed_communication_ns"):
        message = (
            f"{of_messages:.3g} s of it are in messages between two ranks. The shorter side is "
            "taken as the transfer: an upper bound where both sides wait"
        )
        findings.append(
            Finding("messages-by-shorter-side", "note", message, touches=("communication_parts",))
        )
    details: dict[str, Any] = {
        "exposed_communication_parts_s": parts_in_seconds(each, steps),
        "pct_of_step": mean_of(shares_by_rank(each, f"{part}_ns", "window_ns"), "pct"),
        "per_collective_s": _listed(parts, steps, part, "collective"),
        "per_dimension_s": _listed(parts, steps, part, "dimension"),
        "of_messages_s": of_messages,
        "unknown_because_s": reasons,
    }
    measurement = time_per_step(each, steps, f"{part}_ns", details)
    return replace(measurement, findings=findings)


def _listed(parts: pl.DataFrame, steps: pl.DataFrame, part: str, key: str) -> dict[str, float]:
    """Return {value of `key`: the part of exposed communication in a step, mean over ranks, s}."""
    rows = keep_rows(parts, (parts["part"] == part) & (parts["exposed_ns"] > 0))
    return seconds_by(rows, steps, key, "exposed_ns")
