"""Comparability of two runs: differences in the fields of their cards, and comparable numbers.

`results.toml` states the rules for two results of one metric.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.card import Card, Reading
from ccl_bench.card.comparison_fields import (
    Plain,
    Role,
    field_rules,
    keys_in_card,
    rule_of,
    unknown_fields,
    values_in_card,
)
from ccl_bench.card.sections import read_section
from ccl_bench.card.yaml_tree import IssueLog, mapping_of, shown
from ccl_bench.catalog.models import model
from ccl_bench.side_files.metadata import RunMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccl_bench.card.comparison_fields import FieldRule, Fields
    from ccl_bench.result import Result

_OF_METADATA = {"data.global_batch_size": "global_batch_size", "data.tokens_per_step": "tokens_per_step"}
"""Fields that no card has → their key in `run_metadata.json`."""


def read_fields(statement: Mapping[str, object]) -> Reading[Fields]:
    """Return fields that another program states, read as a card and `run_metadata.json` are read.

    A field that they do not have is an error, and so is a value that they may not have.
    """
    log, of_card, in_card = IssueLog(), keys_in_card(), dict[str, Any]()
    for name, value in statement.items():
        variables = next((f"{each}." for each in _environments() if name.startswith(f"{each}.")), "")
        keys = of_card.get(name, ())
        if variables:
            keys = (*of_card[variables.removesuffix(".")], name.removeprefix(variables))
        if keys and name not in _environments():
            part = in_card
            for key in keys[:-1]:
                part = part.setdefault(key, {})
            part[keys[-1]] = value
        elif name not in _OF_METADATA:
            log.error(shown(name), "is not a field of a card")
    in_metadata = {key: statement[name] for name, key in _OF_METADATA.items() if name in statement}
    fields = values_in_card(read_section(mapping_of(in_card), Card, log, unknown=log.error))
    metadata = read_section(mapping_of(in_metadata), RunMetadata, log, unknown=log.error)
    of_metadata = ((name, getattr(metadata, key)) for name, key in _OF_METADATA.items())
    return Reading(fields | {name: value for name, value in of_metadata if value is not None}, log.in_order())


@cache
def _environments() -> tuple[str, ...]:
    """Return the fields that hold variables of an environment."""
    return tuple(name for name in field_rules() if name.endswith(".env"))


def agree(rule: FieldRule, one: Plain, other: Plain) -> bool:
    """Whether two values mean the same, apart from spelling and rounding."""
    if rule.rounded and isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= rule.rounded * max(abs(one), abs(other))
    return canonical(rule.name, one) == canonical(rule.name, other)


def canonical(name: str, value: Plain) -> Plain:
    """Return a value in its canonical spelling."""
    if isinstance(value, list):
        return sorted(_folded(item) for item in value)
    if not isinstance(value, str):
        return value
    folded = _folded(value)
    return _model_without_owner(folded) if name == "model.model_family" else folded


@lru_cache(maxsize=1000)
def _model_without_owner(folded: str) -> str:
    """Return the catalog's name of a public model, else the name itself."""
    # To look for similar names of one that the catalog lacks takes a millisecond.
    with suppress(NotMeasurable):
        return _folded(model(folded).name).rpartition("/")[2]
    return folded


def _folded(text: str) -> str:
    return re.sub(r"[\s_-]+", "-", text.strip().lower())


def comparison_key(fields: Mapping[str, Plain]) -> tuple[tuple[str, Plain | None], ...]:
    """Return the fields that two runs must have in common to be ranked together.

    They are the fields that define the workload and that no other field implies, in canonical spelling. None
    stands for an unstated field, and is a value of its own: a ranking does not guess.
    """
    return tuple((name, canonical(name, fields[name]) if name in fields else None) for name in _defining())


@cache
def _defining() -> tuple[str, ...]:
    rules = field_rules().values()
    return tuple(rule.name for rule in rules if rule.role == "workload" and not rule.implied)


Verdict = Literal["comparable", "not comparable", "unknown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two runs differ."""

    field: str
    """Name as in `comparison_fields.toml`, such as `data.seq_len`."""
    baseline: Plain | None
    """Value of the first; None if unstated."""
    other: Plain | None
    """Value of the second."""
    role: Role
    """`workload`: they did different work; `studied`: the subject of the comparison."""
    reason: str
    """Why the field has this role."""


@dataclass(frozen=True, slots=True)
class Comparability:
    """Whether two runs are comparable."""

    verdict: Verdict
    """`unknown` if a card does not identify the workload."""
    workload: tuple[Difference, ...] = ()
    """Fields that define the workload and differ: each makes the runs incomparable."""
    studied: tuple[Difference, ...] = ()
    """Fields that may differ: the subject of the comparison."""
    unknown: tuple[str, ...] = ()
    """Fields that define the workload and that one side does not state."""


def find_differences(one: Mapping[str, Plain], other: Mapping[str, Plain]) -> tuple[Difference, ...]:
    """Return the differences of two runs by their fields (`fields_of`), fields of the workload first.

    A field of the workload that only one side states is no contradiction and is left out: `unknown_fields`
    lists it. Fields without influence on speed are left out.
    """
    order = {name: place for place, name in enumerate(field_rules())}
    names = sorted({*one, *other}, key=lambda name: (order[rule_of(name).name], name))
    differences = []
    for name in names:
        rule, before, after = rule_of(name), one.get(name), other.get(name)
        both = before is not None and after is not None
        is_same = both and agree(rule, before, after)  # type: ignore[arg-type]
        is_no_contradiction = rule.role == "workload" and not both
        if rule.role != "ignored" and not is_same and not is_no_contradiction:
            differences.append(Difference(name, before, after, rule.role, rule.reason))
    return tuple(sorted(differences, key=lambda difference: difference.role != "workload"))


def judge_comparability(
    one: Mapping[str, Plain],
    other: Mapping[str, Plain],
    *,
    study: Iterable[str] = (),
    is_same_run: bool = False,
) -> Comparability:
    """Return the comparability of two runs; fields in `study` may differ, regardless of their rule.

    The same recording (`is_same_run`) did the same work, even if no card identifies it.
    """
    studied_too = {known_field(name) for name in study}
    differences = [
        replace(each, role="studied") if rule_of(each.field).name in studied_too else each
        for each in find_differences(one, other)
    ]
    workload = tuple(each for each in differences if each.role == "workload")
    missed = {*unknown_fields(one), *unknown_fields(other)} - studied_too
    unknown = () if is_same_run else tuple(name for name in field_rules() if name in missed)
    verdict: Verdict = "not comparable" if workload else "unknown" if unknown else "comparable"
    return Comparability(
        verdict, workload, tuple(each for each in differences if each.role == "studied"), unknown
    )


def known_field(name: str) -> str:
    """Return the full name of a field given by its end, such as `seq_len`; raise UsageError for another."""
    names = [rule.name for rule in field_rules().values() if rule.role != "ignored"]
    matching = [full for full in names if full == name or full.endswith(f".{name}")]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"{name!r} may be {' or '.join(matching)}", fix="give the full name")
    ends = {full.rpartition(".")[2]: full for full in names}
    fix = did_you_mean(name, [*names, *ends]) or f"known: {', '.join(names)}"
    raise UsageError(f"unknown field {name!r}", fix=fix)


@dataclass(frozen=True, slots=True)
class ResultRule:
    """One aspect besides the numbers in which two results may differ."""

    what: str
    effect: Literal["blocks", "noted"]
    reason: str
    detail: str = ""
    """Key in the details, if `what` is `detail`."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Remarks on two results besides their numbers."""

    text: str
    blocks: bool
    """Whether the numbers allow no conclusion."""


@cache
def result_rules() -> tuple[ResultRule, ...]:
    """Return the rules in the order in which they are stated."""
    raw = pkgutil.get_data(__package__, "results.toml") or b""
    return tuple(ResultRule(**row) for row in tomllib.loads(raw.decode())["rule"])


def remarks(one: Result, other: Result) -> tuple[Remark, ...]:
    """Return the remarks on two results that both have a value."""
    described = ((rule, _describe(rule, one, other)) for rule in result_rules())
    return tuple(
        Remark(f"{seen}: {rule.reason}", rule.effect == "blocks")
        for rule, seen in described
        if seen is not None
    )


def _describe(rule: ResultRule, one: Result, other: Result) -> str | None:
    """Return the observed difference, or None if the rule does not apply."""
    one_aspect, other_aspect = _aspect(rule, one), _aspect(rule, other)
    if rule.what == "errors":
        one_sided = sorted(set(one_aspect) ^ set(other_aspect))
        return f"error {', '.join(one_sided)} on one side" if one_sided else None
    if rule.what == "shared errors":
        shared = sorted(set(one_aspect) & set(other_aspect))
        return f"error {', '.join(shared)} on both sides" if shared else None
    if one_aspect == other_aspect:
        return None
    name = rule.detail or rule.what
    return f"{name} {' and '.join(', '.join(each) or 'unknown' for each in (one_aspect, other_aspect))}"


def _aspect(rule: ResultRule, result: Result) -> list[str]:
    """Return the aspect of a result that a rule compares, as texts."""
    if "errors" in rule.what:
        return sorted({finding.code for finding in result.findings if finding.severity == "error"})
    if rule.what == "ranks":
        return [str(len(result.ranks))]
    if rule.what == "detail":
        return [str(result.details[rule.detail])] if rule.detail in result.details else []
    step_choice = result.provenance.steps.description if result.provenance.steps else ""
    values = {
        "revision": str(result.provenance.metric_revision),
        "unit": result.unit,
        "choice": step_choice or "every step",
        "window": result.window.removesuffix(step_choice).removesuffix(", "),
    }
    return [values[rule.what]] if values[rule.what] else []
