"""Diagnoses: one module per rule, which detects a cause and replays the run without it.

The function's name is the rule's name, its parameters are the tables, facts and replays that it needs, its
docstring is its manual page. `gains` replays the run, `verdict` computes the step breakdown, and `diagnose`
applies every rule; `rules` holds them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ccl_bench.base.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccl_bench.result.diagnosis import Opportunity

    Look = Callable[..., Iterable[Opportunity]]

GROUP = "ccl_bench.diagnoses"

Kind = Literal["ranks", "communication", "pipeline", "host", "device", "run"]


class Silent(Exception):  # noqa: N818  it is an answer
    """A rule does not apply to this run; the message states why."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A rule as declared."""

    name: str
    kind: Kind
    needs: tuple[str, ...]
    look: Look

    @property
    def manual(self) -> str:
        """The manual page."""
        return inspect.cleandoc(self.look.__doc__ or "")

    @property
    def summary(self) -> str:
        """First sentence of the manual page."""
        return self.manual.split("\n\n", 1)[0].replace("\n", " ")


DIAGNOSES: Registry[Diagnosis] = Registry("diagnosis", GROUP, "ccl_bench.diagnosis.rules")


def diagnosis(*, kind: Kind) -> Callable[[Look], Look]:
    """Register the decorated function as a rule under its name."""

    def register(function: Look) -> Look:
        name = function.__name__
        needs = tuple(inspect.signature(function).parameters)
        DIAGNOSES.add(name, Diagnosis(name, kind, needs, function))
        return function

    return register


def load() -> Registry[Diagnosis]:
    """Import every rule of this package and of plug-ins; return the registry."""
    return DIAGNOSES.load()
