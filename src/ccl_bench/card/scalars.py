"""What a person meant by a value: numbers written as text, units, and the many ways to leave it out."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from ccl_bench.card.issues import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ccl_bench.card.yaml_tree import Scalar

ABSENT = frozenset(
    {"", "-", "--", "~", "?", "n/a", "na", "n.a.", "none", "null", "nil", "tbd", "unknown", "not applicable"}
)
"""Texts that say there is no value; compared in lower case."""

_NUMBER = re.compile(r"([-+]?(?:\d[\d_,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*)", re.DOTALL)
_GROUPED = re.compile(r"[-+]?\d{1,3}(,\d{3})+")
_TRUE = frozenset({"yes", "on", "true", "enabled"})
_FALSE = frozenset({"no", "off", "false", "disabled"})


class NotUnderstoodError(ValueError):
    """A value whose meaning would have to be guessed."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def is_absent(scalar: Scalar) -> bool:
    """Whether the value says that there is none."""
    return scalar.value is None or (isinstance(scalar.value, str) and says_absent(scalar.value))


def says_absent(text: str) -> bool:
    """Whether a text says that there is no value."""
    return text.strip().lower() in ABSENT


def number(scalar: Scalar, units: Collection[str]) -> tuple[float | int, str]:
    """Return the number and a note on its spelling, or raise NotUnderstoodError."""
    value = scalar.value
    if isinstance(value, bool) or value is None:
        raise NotUnderstoodError(f"{scalar.text} is not a number")
    if isinstance(value, str):
        return _number_in_text(value.strip(), units)
    if not math.isfinite(value):
        raise NotUnderstoodError(f"{scalar.text} is not a finite number")
    return value, ""


def whole_number(scalar: Scalar, units: Collection[str]) -> tuple[int, str]:
    """Return the whole number and a note on its spelling, or raise NotUnderstoodError."""
    value, note = number(scalar, units)
    if isinstance(value, float) and not value.is_integer():
        raise NotUnderstoodError(
            f"{shown(scalar.text)} is not a whole number", "write a whole number, for example 2"
        )
    return int(value), note


def truth(scalar: Scalar) -> tuple[bool, str]:
    """Return true or false and a note on its spelling, or raise NotUnderstoodError."""
    if isinstance(scalar.value, bool):
        return scalar.value, ""
    word = str(scalar.value).strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE, f"read as {str(word in _TRUE).lower()}"
    raise NotUnderstoodError(f"{shown(scalar.text)} is neither true nor false", "write true or false")


def word(scalar: Scalar, known: Collection[str], synonyms: Mapping[str, str]) -> tuple[str, str]:
    """Return one of the `known` words and a note on its spelling, or raise NotUnderstoodError."""
    written = scalar.text.strip()
    plain = written.lower()
    for candidate in (plain, plain.replace("-", "_").replace(" ", "_")):
        meant = synonyms.get(candidate, candidate)
        if meant in known:
            return meant, "" if meant == written else f"read as {meant}"
    raise NotUnderstoodError(
        f"{shown(written)} is not known here", f"write one of {', '.join(sorted(known))}"
    )


def _number_in_text(text: str, units: Collection[str]) -> tuple[float | int, str]:
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 40:
        raise NotUnderstoodError(f"{shown(text)} is not a number", "write a number")
    digits, unit = match[1], match[2].strip()
    if unit and not _is_unit(unit, units):
        expected = f" in {min(units, key=len)}" if units else ""
        raise NotUnderstoodError(
            f"{shown(text)}: {shown(unit)} is not a unit of this field", f"write the number alone{expected}"
        )
    if "," in digits and not _GROUPED.fullmatch(digits):
        raise NotUnderstoodError(
            f"{shown(text)}: the comma can be read in two ways", "write a point for decimals"
        )
    return _value(digits.replace(",", "").replace("_", ""), text), f"read {shown(text)} as a number"


def _is_unit(unit: str, units: Collection[str]) -> bool:
    """Whether `unit` is one of `units`; b is a bit and B is a byte, so their case is never ignored."""
    anyhow = "b" not in unit.lower() and unit.lower() in {known.lower() for known in units}
    return anyhow or unit in units


def _value(digits: str, text: str) -> float | int:
    if re.fullmatch(r"[-+]?\d+", digits):
        return int(digits)
    value = float(digits)
    if not math.isfinite(value):
        raise NotUnderstoodError(f"{shown(text)} is not a finite number")
    return value
