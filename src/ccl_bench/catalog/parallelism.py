"""Parallelism dimensions: what a process group's description says, and how ranks lie in a mesh."""

from __future__ import annotations

import re
from functools import cache

from ccl_bench.catalog import load_data


def mesh_order(framework: str = "", phase: str = "") -> list[str]:
    """Return the axes of a mesh from the outermost to the innermost, as a framework lays ranks out.

    Without a framework that is known, those of inference lie as serving engines put them.
    """
    known = load_data("parallelism")
    serving = known["serving_mesh"]
    name = re.sub(r"[\s_-]+", "-", framework.strip().lower())
    serves = name.startswith(tuple(serving["frameworks"])) or (not name and phase == "inference")
    return list((serving if serves else known["mesh"])["order"])


def experts_are_an_axis(framework: str) -> bool:
    """Whether the expert-parallel ranks of a framework are not those of its data or tensor parallelism."""
    return framework.strip().lower().startswith(tuple(load_data("parallelism")["expert_axis"]["frameworks"]))


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(row["match"]), row["dimension"]) for row in load_data("parallelism")["description"]]


@cache
def described_dimension(description: str) -> str | None:
    """Return the dimension that a group's description names, or None where it names none."""
    text = description.strip().lower()
    return next((dimension for pattern, dimension in _patterns() if pattern.search(text)), None)
