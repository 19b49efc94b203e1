"""What the numbers of each serving benchmark mean, and which of its fields they are."""

from __future__ import annotations

from ccl_bench.catalog import load_data

_FIELDS = ("ttft", "latency", "tokens", "gaps", "differs")


def title(name: str) -> str:
    """Return what a tool calls itself."""
    return str(_row(name).get("title", name))


def meaning(name: str) -> dict[str, str]:
    """Return which field of a tool stands for which quantity; empty for a tool that is not known."""
    row = _row(name)
    return {key: str(row[key]) for key in _FIELDS if key in row}


def lacks(name: str) -> str:
    """Return why a tool measures none of the times that a user meets; empty where it measures some."""
    return str(_row(name).get("lacks", ""))


def _row(name: str) -> dict[str, object]:
    rows: list[dict[str, object]] = load_data("serving_tools")["tool"]
    return next((row for row in rows if row["name"] == name), {})
