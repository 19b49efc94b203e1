"""Element types: one canonical name and one width in bytes behind every spelling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.registry import did_you_mean
from ccl_bench.catalog.data_files import load_data


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type."""

    name: str
    """Canonical name, such as `bf16`."""
    width_bytes: float
    """Bytes of one element as traces count elements; 0.5 for an unpacked 4-bit type."""
    peak: str
    """The dtype a device's peak FLOP/s is listed under; empty if matrix units do not take the type."""


@cache
def dtypes() -> dict[str, Dtype]:
    """Return canonical name -> dtype, in the order of the data file."""
    return {
        row["name"]: Dtype(row["name"], float(row["width_bytes"]), row.get("peak", ""))
        for row in load_data("dtypes")["dtype"]
    }


@cache
def _spellings() -> dict[str, str]:
    names: dict[str, str] = {}
    for row in load_data("dtypes")["dtype"]:
        for spelling in (row["name"], *row["spellings"]):
            if names.setdefault(_plain(spelling), row["name"]) != row["name"]:
                raise ValueError(f"dtype spelling {spelling!r} stands for two dtypes")
    return names


def _plain(name: str) -> str:
    word = name.strip().lower()
    if word.startswith("tensor(") and word.endswith(")"):  # Execution Traces write Tensor(c10::Half)
        word = word[len("tensor(") : -1]
    for prefix in load_data("dtypes")["prefixes"]:
        word = word.removeprefix(prefix)
    return word


@cache
def dtype(name: str) -> Dtype:
    """Return the dtype behind any spelling of it, or raise NotMeasurable naming the nearest ones."""
    canonical_name = _spellings().get(_plain(name))
    if canonical_name is None:
        hint = did_you_mean(_plain(name), _spellings())
        raise NotMeasurable(f"unknown element type {name!r}", fix=hint or f"known: {', '.join(dtypes())}")
    return dtypes()[canonical_name]


def canonical(name: str) -> str:
    """Return the canonical name behind any spelling, such as `bf16` for `c10::BFloat16`."""
    return dtype(name).name


def width_bytes(name: str) -> float:
    """Return the bytes of one element of the type, whatever its spelling."""
    return dtype(name).width_bytes


def xla_type(number: int) -> str:
    """Return XLA's spelling of the element type with a number; empty if it is no array of numbers."""
    names: list[str] = load_data("dtypes")["xla"]["names"]
    return names[number] if 0 <= number < len(names) else ""
