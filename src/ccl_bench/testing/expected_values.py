"""The values that metrics must give for a run, by the name of the metric and in its unit."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.testing.expected import Expected, StepParts

_S = 1e9
_GB = 1e9


def values(expected: Expected) -> dict[str, float]:
    """Return metric -> value, over the ranks that have a file; metrics that do not apply are absent."""
    plan = expected.plan
    found = _of_steps(expected) | _of_calls(expected) | _of_waits(expected)
    if plan.pp > 1:
        bubbles = [
            fmean(expected.bubble_ns(rank, step) for rank in ranks) for ranks, step in _stages(expected)
        ]
        found["bubble_size_pipeline"] = found["pipeline_bubble_16"] = fmean(bubbles) / _S
    tokens = expected.tokens_by_expert_device()
    if plan.ep > 1 and any(tokens):
        found["token_to_expert_assignment"] = max(tokens) / fmean(tokens)
    return found


def _stages(expected: Expected) -> list[tuple[list[int], int]]:
    """Return the present ranks of each stage with each step."""
    plan = expected.plan
    of_stage = plan.world_size // plan.pp
    ranks = [[r for r in plan.present_ranks if r // of_stage == stage] for stage in range(plan.pp)]
    return [(members, step) for members in ranks if members for step in plan.step_numbers]


def _of_steps(expected: Expected) -> dict[str, float]:
    plan = expected.plan
    ranks = plan.present_ranks
    parts = {rank: [expected.parts(rank, step) for step in plan.step_numbers] for rank in ranks}
    slowest = [max(steps[index].duration_ns for steps in parts.values()) for index in range(plan.steps)]
    seconds = fmean(slowest) / _S
    tokens_per_s = plan.tokens_per_step / seconds
    flops = plan.model_flops_per_token * tokens_per_s
    mfu = 100 * flops / (plan.world_size * plan.device.peak_tflops * 1e12)
    possible = {"mfu": mfu} if mfu <= 100 else {}
    return possible | {
        "iteration_wall_clock_time": seconds,
        "iter_time_16": seconds,
        "throughput_tokens_sec": tokens_per_s,
        "throughput_tokens_16": tokens_per_s,
        "gpu_busy": fmean(_share(steps, "busy_ns") for steps in parts.values()),
        "gpu_idle": fmean(_share(steps, "idle_ns") for steps in parts.values()),
    }


def _share(steps: list[StepParts], name: str) -> float:
    """Return a part of the device windows, %."""
    taken: int = sum(getattr(part, name) for part in steps)
    return 100 * taken / sum(part.window_ns for part in steps)


def _of_calls(expected: Expected) -> dict[str, float]:
    """Return the values of metrics about communication."""
    plan = expected.plan
    ranks, steps = plan.present_ranks, plan.step_numbers
    if not expected.meetings:
        return {}
    first = [len(expected.calls(ranks[0], step)) for step in steps]
    sizes = sum((expected.bytes_by_dimension(rank, step) for rank in ranks for step in steps), Counter())
    overlap = _overlap(expected)
    total = sum(sizes.values())
    found = {
        "coll_call_num": fmean(first),
        "coll_call_num_16": fmean(first),
        "traffic_distribution_16": total / len(ranks) / len(steps) / _GB,
    }
    if total:
        found["traffic_distribution"] = 100 * max(sizes.values()) / total
    if overlap is not None:
        found |= {"comm_comp_overlap": overlap, "comm_comp_overlap_16": overlap / 100}
    return found


def _of_waits(expected: Expected) -> dict[str, float]:
    """Return the values of metrics about stragglers, where any collective shows who waits."""
    plan, present = expected.plan, set(expected.plan.present_ranks)
    if not any(one.is_symmetric and len(present & one.members.keys()) > 1 for one in expected.meetings):
        return {}
    lag_s = fmean(lag_ns(expected, step) for step in plan.step_numbers) / _S
    step_s = _of_steps(expected)["iteration_wall_clock_time"]
    return {"straggler_lag_16": lag_s, "straggler": lag_s / step_s}


def _overlap(expected: Expected) -> float | None:
    """Return the mean over communicating ranks of overlap / communication, %."""
    shares = []
    for rank in expected.plan.present_ranks:
        parts = [expected.parts(rank, step) for step in expected.plan.step_numbers]
        if communication := sum(part.communication_ns for part in parts):
            shares.append(100 * sum(part.overlap_ns for part in parts) / communication)
    return fmean(shares) if shares else None


def waits_in_groups(expected: Expected, step: int) -> dict[str, dict[int, int]]:
    """Return group -> present rank -> total wait in a step, ns; who waits least in a group came last.

    Only over collectives that all members leave together. Groups go by their `Process Group Name`.
    """
    found: dict[str, dict[int, int]] = {}
    for meeting in expected.meetings:
        if meeting.step == step and meeting.is_symmetric:
            waits = found.setdefault(meeting.group, dict.fromkeys(sorted(meeting.members), 0))
            for rank in meeting.members:
                waits[rank] += meeting.wait_ns(rank)
    missing = expected.plan.missing_ranks
    return {
        group: {rank: wait for rank, wait in waits.items() if rank not in missing}
        for group, waits in found.items()
    }


def message_bytes(expected: Expected) -> dict[tuple[int, int], int]:
    """Return (sender, receiver) -> bytes sent from stage to stage in the whole run."""
    found: Counter[tuple[int, int]] = Counter()
    for meeting in expected.meetings:
        if meeting.collective == "send_recv":
            sender, receiver = sorted(meeting.members, key=lambda rank: meeting.members[rank].name != "send")
            found[sender, receiver] += meeting.bytes(sender)
    return dict(found)


def lag_ns(expected: Expected, step: int) -> int:
    """Return the straggler's lag in a step: the longest minus the shortest total wait of a rank, ns."""
    waits = [expected.wait_ns(rank, step) for rank in expected.plan.present_ranks]
    return max(waits) - min(waits)
