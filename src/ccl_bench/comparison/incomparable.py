"""What keeps two results of one metric from being compared, by the rules of `results.toml`."""

from __future__ import annotations

import pkgutil
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ccl_bench.result import Result


@dataclass(frozen=True, slots=True)
class ResultRule:
    """One way in which two results may differ beside their numbers."""

    what: str
    effect: Literal["blocks", "noted"]
    reason: str
    detail: str = ""
    """Key in the details, where `what` is `detail`."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What is to be said of two results beside their numbers."""

    text: str
    blocks: bool
    """Whether nothing can be concluded from the numbers."""


@cache
def result_rules() -> tuple[ResultRule, ...]:
    """Return the rules in the order in which they are stated."""
    raw = pkgutil.get_data(__package__, "results.toml") or b""
    return tuple(ResultRule(**row) for row in tomllib.loads(raw.decode())["rule"])


def remarks(one: Result, other: Result) -> tuple[Remark, ...]:
    """Return what is to be said of two results that both have a value."""
    found = ((rule, _describe(rule, one, other)) for rule in result_rules())
    return tuple(
        Remark(f"{seen}: {rule.reason}", rule.effect == "blocks") for rule, seen in found if seen is not None
    )


def _describe(rule: ResultRule, one: Result, other: Result) -> str | None:
    """Return how the rule applies, or None where it does not."""
    mine, theirs = _aspect(rule, one), _aspect(rule, other)
    if rule.what == "errors":
        alone = sorted(set(mine) ^ set(theirs))
        return f"error {', '.join(alone)} on one side" if alone else None
    if rule.what == "shared errors":
        shared = sorted(set(mine) & set(theirs))
        return f"error {', '.join(shared)} on both sides" if shared else None
    if mine == theirs:
        return None
    name = rule.detail or rule.what
    return f"{name} {' and '.join(_words(aspect) for aspect in (mine, theirs))}"


def _aspect(rule: ResultRule, result: Result) -> list[str]:
    """Return the side of a result that a rule looks at, as texts."""
    if "errors" in rule.what:
        return sorted({finding.code for finding in result.findings if finding.severity == "error"})
    if rule.what == "ranks":
        return [str(len(result.ranks))]
    if rule.what == "detail":
        return [str(result.details[rule.detail])] if rule.detail in result.details else []
    chosen = result.provenance.steps.words if result.provenance.steps else ""
    values = {
        "revision": str(result.provenance.metric_revision),
        "unit": result.unit,
        "choice": chosen or "every step",
        "window": result.window.removesuffix(chosen).removesuffix(", "),
    }
    return [values[rule.what]] if values[rule.what] else []


def _words(aspect: list[str]) -> str:
    return ", ".join(aspect) or "unknown"
