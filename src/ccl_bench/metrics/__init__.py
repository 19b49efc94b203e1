"""Metrics: one module for each metric or family, which holds a plain function with the decorator `metric`.

The function's name is the metric's name, its parameters are the tables and facts that it needs, and its
docstring is its manual page. `metric` registers the function as a `Metric` with unit, conditions and other
sources; the function returns a `Measurement`; `load` imports metrics and returns their registry.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ccl_bench.base.registry import Registry
from ccl_bench.catalog.metric_names import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.findings import Finding

GROUP = "ccl_bench.metrics"

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a metric returns: the value, and what a reader needs to check it."""

    value: float
    """In the metric's unit."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain numbers, texts, lists and mappings."""
    window: str = ""
    """How the steps were found, where steps matter."""
    ranks: Sequence[int] = ()
    """Ranks whose data the value is computed from."""
    findings: Sequence[Finding] = ()
    """Findings that make this value doubtful and that only the metric can detect."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as declared."""

    name: str
    unit: str
    better: Better
    needs: tuple[str, ...]
    compute: Callable[..., Measurement]
    conditions: tuple[Callable[[Facts], str | None], ...] = ()
    aliases: tuple[str, ...] = ()
    scale: float = 1.0
    """What the computed value is multiplied with: not 1 for another metric's unit variant."""
    variant_of: str = ""
    revision: int = 1
    """Raised when the definition changes, so that old and new values are never ranked together."""
    prefers: tuple[str, ...] = ()
    """Tables that give a better value: of two profilers, the one that filled them is used."""
    otherwise: tuple[Callable[..., Measurement], ...] = ()
    """Ways to compute it from other sources if this one gives no value, best first."""
    may_exceed_whole: bool = False
    """Whether a value in % may be above 100: it is relative to a measurement, not to a whole or a limit."""
    explained_by: tuple[str, ...] = ()
    """Tables that only the details use: the parameters with a default. The value does not depend on them."""

    @property
    def sources(self) -> tuple[Metric, ...]:
        """The metric, followed by the same metric from each other source."""
        others = (replace(self, compute=way, **_parameters(way)) for way in self.otherwise)
        return (self, *others)

    @property
    def summary(self) -> str:
        """First sentence of the manual page."""
        return self.manual.partition("\n\n")[0].replace("\n", " ")

    @property
    def manual(self) -> str:
        """The manual page."""
        return inspect.cleandoc(self.compute.__doc__ or "")

    @property
    def defined_in(self) -> str:
        """Module that defines the metric."""
        return self.compute.__module__

    def inapplicable(self, facts: Facts) -> str | None:
        """Return the reason why the metric makes no sense for a run with these facts, or None."""
        return next((reason for condition in self.conditions if (reason := condition(facts))), None)


class _Parameters(TypedDict):
    needs: tuple[str, ...]
    explained_by: tuple[str, ...]


@cache
def _parameters(function: Callable[..., Measurement]) -> _Parameters:
    """Return the inputs of a metric function: for its value, and (with a default) for its details."""
    parameters = inspect.signature(function).parameters
    optional = tuple(name for name, each in parameters.items() if each.default is not inspect.Parameter.empty)
    return {"needs": tuple(name for name in parameters if name not in optional), "explained_by": optional}


METRICS: Registry[Metric] = Registry("metric", GROUP, "ccl_bench.metrics", suggest=suggestion)


def metric(
    *,
    unit: str,
    better: Better,
    applies: tuple[Callable[[Facts], str | None], ...] = (),
    aliases: tuple[str, ...] = (),
    variants: Mapping[str, tuple[str, float]] = MappingProxyType({}),
    revision: int = 1,
    prefers: tuple[str, ...] = (),
    otherwise: tuple[Callable[..., Measurement], ...] = (),
    may_exceed_whole: bool = False,
) -> Callable[[Callable[..., Measurement]], Callable[..., Measurement]]:
    """Register the decorated function as a metric; parameters with a default feed only its details.

    `applies` are the conditions under which it makes sense. `variants` are the same number
    under another name and unit: name to (unit, factor). `prefers` are tables that give a better number.
    `otherwise` compute it from other sources where the decorated function gives no value. A value in % above
    100 is refused unless it `may_exceed_whole`.
    """

    def register(function: Callable[..., Measurement]) -> Callable[..., Measurement]:
        name = function.__name__
        base = Metric(
            name,
            unit,
            better,
            compute=function,
            conditions=applies,
            aliases=aliases,
            revision=revision,
            prefers=prefers,
            otherwise=otherwise,
            may_exceed_whole=may_exceed_whole,
            **_parameters(function),
        )
        METRICS.add(name, base, aliases)
        for other, (other_unit, scale) in variants.items():
            variant = replace(base, name=other, unit=other_unit, aliases=(), scale=scale, variant_of=name)
            METRICS.add(other, variant)
        return function

    return register


def load(names: Iterable[str] | None = None) -> Registry[Metric]:
    """Import the metrics of these names, or every one of this package and of plug-ins; return the registry.

    A metric lives in the module of its name. Where a name is another one, or a plug-in may bring metrics, all
    are imported.
    """
    wanted_names = None if names is None else {*names}
    if wanted_names is None or not wanted_names <= _own_modules() or METRICS.has_plugins():
        return METRICS.load()
    for name in sorted(wanted_names):
        importlib.import_module(f"{__name__}.{name}")
    return METRICS if all(name in METRICS for name in wanted_names) else load()


@cache
def _own_modules() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(__path__))
