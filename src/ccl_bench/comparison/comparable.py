"""Whether two runs did the same work, and in what they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.comparison.fields import Plain, Role, agree, rule_of, rules, unknown_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
Verdict = Literal["comparable", "not comparable", "unknown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two runs differ."""

    field: str
    """Name as in `fields.toml`, such as `data.seq_len`."""
    baseline: Plain | None
    """Value of the one; None where it is not written."""
    other: Plain | None
    """Value of the other."""
    role: Role
    """`workload`: they did different work; `studied`: it is what is compared."""
    reason: str
    """Why the field has this role."""


@dataclass(frozen=True, slots=True)
class Comparability:
    """Whether the numbers of two runs compare."""

    verdict: Verdict
    """`unknown` where a card does not say what was run."""
    workload: tuple[Difference, ...] = ()
    """Fields that define the workload and differ: each makes the runs incomparable."""
    studied: tuple[Difference, ...] = ()
    """Fields that may differ: they are what is compared."""
    unknown: tuple[str, ...] = ()
    """Fields that define the workload and that one side does not say."""


def differences(one: Mapping[str, Plain], other: Mapping[str, Plain]) -> tuple[Difference, ...]:
    """Return in what two runs differ, by their fields (`fields_of`), those that define the workload first.

    A field that defines the workload and is written on one side only contradicts nothing and is left
    out: `unknown_fields` tells where it is missed. Fields that say nothing about speed are left out.
    """
    order = {name: place for place, name in enumerate(rules())}
    names = sorted({*one, *other}, key=lambda name: (order[rule_of(name).name], name))
    found = (_difference(name, one.get(name), other.get(name)) for name in names)
    return tuple(sorted(filter(None, found), key=lambda difference: difference.role != "workload"))


def _difference(name: str, one: Plain | None, other: Plain | None) -> Difference | None:
    rule = rule_of(name)
    both = one is not None and other is not None
    if rule.role == "ignored" or (both and agree(rule, one, other)):  # type: ignore[arg-type]
        return None
    if rule.role == "workload" and not both:
        return None
    return Difference(name, one, other, rule.role, rule.reason)


def comparability(
    one: Mapping[str, Plain],
    other: Mapping[str, Plain],
    *,
    study: Iterable[str] = (),
    is_same_run: bool = False,
) -> Comparability:
    """Return whether two runs compare; fields named in `study` may differ, whatever their rule.

    The same recording (`is_same_run`) did the same work, whether or not a card says which.
    """
    studied_too = {known_field(name) for name in study}
    found = [
        replace(each, role="studied") if rule_of(each.field).name in studied_too else each
        for each in differences(one, other)
    ]
    workload = tuple(each for each in found if each.role == "workload")
    missed = {*unknown_fields(one), *unknown_fields(other)} - studied_too
    unknown = () if is_same_run else tuple(name for name in rules() if name in missed)
    verdict: Verdict = "not comparable" if workload else "unknown" if unknown else "comparable"
    return Comparability(verdict, workload, tuple(each for each in found if each.role == "studied"), unknown)


def known_field(name: str) -> str:
    """Return the full name of a field given by its end, such as `seq_len`; raise UsageError for another."""
    known = [rule.name for rule in rules().values() if rule.role != "ignored"]
    matching = [full for full in known if full == name or full.endswith(f".{name}")]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"{name!r} may be {' or '.join(matching)}", fix="give the full name")
    ends = {full.rpartition(".")[2]: full for full in known}
    fix = did_you_mean(name, [*known, *ends]) or f"known: {', '.join(known)}"
    raise UsageError(f"unknown field {name!r}", fix=fix)
