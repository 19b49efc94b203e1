"""The metric `token_to_expert_assignment`: imbalance of tokens over expert-parallel devices."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.exchanges import (
    by_device,
    coefficient_of_variation,
    imbalance,
    sum_rows,
)
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import ranks_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.result.details import ExpertGroup, ExpertsDetails
    from ccl_bench.side_files import ExpertTokens, MoeAssignments

_FILE = "moe_assignments*.json"
_SPLITS = "split sizes of all-to-alls"


@metric(unit="ratio", better="lower", applies=(checks.experts_on_devices,))
def token_to_expert_assignment(
    moe_assignments: MoeAssignments | None, expert_rows: pl.DataFrame, groups: pl.DataFrame, facts: Facts
) -> Measurement:
    """Imbalance of experts: tokens of the busiest expert-parallel device over the mean; 1 is balanced.

    Formula:
        token_to_expert_assignment = max over devices of tokens / mean over devices of tokens

        tokens over all recorded layers and steps; of several expert-parallel groups, their mean.

        Without an expert-parallel degree the tokens of each expert take the place of those of each device,
        with a finding.

    Caveats:
        Counts come from `moe_assignments*.json` where the run has it, else from the rows that each rank
        receives in all-to-alls that dispatch tokens (a combine, the same splits the other way round, is not
        counted). Where a file names experts by number, `num_experts` of the card states how many there are,
        else the highest number in the file. Experts are assigned to devices in order, the same number to
        each. Balanced totals can hide layers that are uneven in opposite ways: look at the layers.
        Exchanges without splits, such as those of DeepEP or padded to a capacity, show nothing.

    Reference:
        Shazeer et al., Outrageously large neural networks, arXiv 1701.06538, coefficient of variation.
    """
    traced = _from_splits(expert_rows, groups, facts)
    records = () if moe_assignments is None else moe_assignments.records
    has_degree = facts.ep is not None or any(record.devices is not None for record in records)
    if moe_assignments is not None and records and (has_degree or traced is None):
        value, details = _from_records(moe_assignments, facts, has_degree=has_degree)
        if traced:
            details["from_splits_ratio"] = traced[0]
        findings = []
        if not facts.num_experts and any(record.names_experts for record in records):
            count = max(len(record.tokens) for record in records)
            message = f"{count} experts are assumed: {_FILE} names none above {count - 1}"
            findings.append(Finding("experts-assumed", "note", message))
        if not has_degree:
            message = (
                "the expert-parallel degree is unknown, so that this is the imbalance over experts; that "
                "over devices is unknown"
            )
            findings.append(Finding("expert-devices-unknown", "warning", message))
        return Measurement(value, details, window="all recorded layers", findings=findings)
    if traced is None:
        raise NotMeasurable(
            "no all-to-all over all members of an expert-parallel group records split sizes",
            fix=f"write {_FILE}, or record all ranks with torch 2.2 or later and exchange tokens with splits",
        )
    return Measurement(traced[0], traced[1], window="whole trace", ranks=ranks_in(expert_rows))


def _from_records(
    assignments: MoeAssignments, facts: Facts, *, has_degree: bool
) -> tuple[float, ExpertsDetails]:
    """Return the imbalance over devices, without a degree that over experts."""
    layers: dict[str, list[list[int]]] = {}
    experts: list[tuple[int, ...]] = []
    records = _filled(assignments.records, facts)
    for record in records:
        devices = len(record.tokens)
        if has_degree and record.devices is not None:
            devices = record.devices
        elif has_degree:
            degree = facts.needed("ep", "write the expert-parallel degree ep into the workload card")
            devices = int(str(degree.value))
        layers.setdefault(record.layer or "all", []).append(by_device(record.tokens, devices))
        if len(record.tokens) > devices or not has_degree:
            experts.append(record.tokens)
    sums = {layer: sum_rows(rows) for layer, rows in layers.items() if _alike(rows)}
    tokens = sum_rows(_alike([*sums.values()]))
    value = imbalance(tokens)
    details: ExpertsDetails = {"source": _FILE}
    if has_degree:
        details["tokens_per_device"] = _listed(tokens)
    details["coefficient_of_variation_ratio"] = coefficient_of_variation(tokens)
    if ranks := {record.rank for record in records if record.rank is not None}:
        details["per_rank_tokens"] = {
            str(rank): sum(sum(record.tokens) for record in records if record.rank == rank)
            for rank in sorted(ranks)
        }
    if experts and len(experts) == len(records):
        tokens_per_expert = sum_rows(_alike(experts))
        details["tokens_per_expert"] = _listed(tokens_per_expert)
        details["imbalance_over_experts_ratio"] = imbalance(tokens_per_expert)
    if len(sums) > 1:
        details["per_layer"] = {layer: imbalance(row) for layer, row in sums.items() if any(row)}
    if assignments.dropped_tokens is not None:
        details["dropped_tokens_count"] = assignments.dropped_tokens
    return value, details


def _filled(records: Sequence[ExpertTokens], facts: Facts) -> list[ExpertTokens]:
    """Return records completed with the experts that received no token."""
    expert_records = [record for record in records if record.names_experts]
    if not expert_records:
        return [*records]
    last = max(len(record.tokens) for record in records)
    count = facts.num_experts.value if facts.num_experts else last
    if last > count:
        raise NotMeasurable(
            f"{_FILE} names expert {last - 1}, and num_experts is {count}",
            fix="number the experts of a layer from 0, or correct num_experts in the workload card",
        )
    return [
        replace(record, tokens=record.tokens + (0,) * (count - len(record.tokens)))
        if record.names_experts
        else record
        for record in records
    ]


def _alike(rows: list[Any]) -> list[Any]:
    """Return the rows, or raise NotMeasurable if they count different numbers of devices or experts."""
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise NotMeasurable(
            f"records of {_FILE} count {lengths[0]} and {lengths[-1]} experts or devices",
            fix="write the same experts in every record",
        )
    return rows


def _listed(tokens: list[int]) -> dict[str, int]:
    return {str(place): count for place, count in enumerate(tokens)}


def _from_splits(
    expert_rows: pl.DataFrame, groups: pl.DataFrame, facts: Facts
) -> tuple[float, ExpertsDetails] | None:
    """Return the imbalance of the expert-parallel groups whose members were all recorded, if any."""
    counts = expert_rows.drop_nulls("rank").group_by("group", "rank").agg(pl.col("received_rows").sum())
    received = {}
    for group in groups.filter(~pl.col("ambiguous")).sort("group").iter_rows(named=True):
        tokens = dict(
            counts.filter(pl.col("group") == group["group"]).select("rank", "received_rows").iter_rows()
        )
        is_whole = len(tokens) == group["size"] and set(tokens) == set(group["members"] or tokens)
        if is_whole and any(tokens.values()) and _shares_experts(group, facts):
            received[group["group"]] = dict(sorted(tokens.items()))
    if not received:
        return None
    per_group: dict[str, ExpertGroup] = {
        name: {
            "imbalance_ratio": imbalance([*tokens.values()]),
            "coefficient_of_variation_ratio": coefficient_of_variation([*tokens.values()]),
            "tokens_per_device": {str(rank): count for rank, count in tokens.items()},
        }
        for name, tokens in received.items()
    }
    value = fmean(imbalance([*tokens.values()]) for tokens in received.values())
    return value, {"source": _SPLITS, "per_group": per_group}


def _shares_experts(group: dict[str, Any], facts: Facts) -> bool:
    """Whether a group shares experts: by its description, by its size, or because the model has experts."""
    if group["dimension"] == "ep":
        return True
    if facts.ep is not None:
        return bool(group["size"] == facts.ep.value)
    return facts.is_moe is not None and facts.is_moe.value
