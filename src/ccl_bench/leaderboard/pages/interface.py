"""The page about the interface for programs, made from its OpenAPI description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.pages.frame import page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.leaderboard.pages.links import Links


@dataclass(frozen=True, slots=True)
class Call:
    """One thing that can be asked for."""

    method: str
    path: str
    summary: str
    parameters: list[tuple[str, str, str]]
    """Name, where it stands, meaning."""


def interface_page(description: dict[str, Any], to: Links) -> str:
    """Return the page; `description` is the OpenAPI document."""
    address = f"{to.root}/openapi.json"
    calls = list(_calls(description))
    return page(
        "interface.html", "Interface for programs", to, at="interface", calls=calls, description=address
    )


def _calls(description: dict[str, Any]) -> Iterator[Call]:
    for path, methods in description["paths"].items():
        for method, said in methods.items():
            parameters = [
                (each["name"], each["in"], each.get("description", "")) for each in said.get("parameters", ())
            ]
            yield Call(method.upper(), path, said.get("description") or said.get("summary", ""), parameters)
