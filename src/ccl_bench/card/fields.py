"""How a field of a file a person writes is declared: its key, meaning, unit and accepted spellings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class Part(BaseModel):
    """One mapping of a file; unknown keys are reported by the reader and dropped here."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        validate_by_name=True,
        validate_by_alias=True,
        loc_by_alias=False,
    )

    scalar_field: ClassVar[str] = ""
    """Field meant when a single value stands where the mapping belongs, as in `framework: vllm`."""
    ordered_fields: ClassVar[tuple[str, ...]] = ()
    """Fields meant, in order, when a list stands where the mapping belongs."""
    order_rises: ClassVar[bool] = False
    """Whether the values of such a list rise; where they fall, nobody can tell which is which."""
    adopted_parts: ClassVar[tuple[str, ...]] = ()
    """Nested parts whose keys are understood one level too high."""
    other_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that belong to the format and that this project has no use for."""


def entry(
    description: str,
    *,
    key: str | None = None,
    unit: str = "",
    units: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    examples: tuple[object, ...] = (),
    literal: bool = False,
    **rest: Any,
) -> Any:
    """Return a documented field that may be absent.

    `key` is its name in the file where that is not the attribute's, `unit` the unit of the number, `units`
    spellings of it that may follow the number, `also` other keys in use for the same thing. `literal` is for
    a word taken as a program wrote it: "none" is a value, and its own spelling needs no note. A field with
    `examples` is in the template. `rest` goes to pydantic: limits, and a default other than None.
    """
    rest.setdefault("default", None)
    if "default_factory" in rest:
        del rest["default"]
    extra: dict[str, Any] = {
        "units": [unit, *units] if unit else list(units),
        "also": list(also),
        "literal": literal,
    }
    if unit:
        extra = {"unit": unit, **extra}
    return Field(
        alias=key,
        description=description,
        examples=list(examples) or None,
        json_schema_extra=_hints(extra),
        **rest,
    )


def _hints(extra: dict[str, Any]) -> dict[str, Any]:
    return {f"x-{name}": value for name, value in extra.items() if value}


def hint(info: FieldInfo, name: str) -> list[str]:
    """Return the list stored with a field under `units` or `also`."""
    extra = info.json_schema_extra
    found = extra.get(f"x-{name}", []) if isinstance(extra, dict) else []
    return [str(item) for item in found] if isinstance(found, list) else []


def is_literal(info: FieldInfo) -> bool:
    """Whether "none" and the like are values of this field."""
    extra = info.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("x-literal"))


def unit_of(info: FieldInfo) -> str:
    """Return the unit of a field, or an empty text."""
    extra = info.json_schema_extra
    return str(extra.get("x-unit", "")) if isinstance(extra, dict) else ""


def key_of(name: str, info: FieldInfo) -> str:
    """Return the key of a field in the file."""
    return info.alias or name
