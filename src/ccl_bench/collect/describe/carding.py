"""The workload card of a run that was collected: filled with what was observed, never against a person."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from ccl_bench.card import fill, read_card, template
from ccl_bench.card.fields import Part, key_of
from ccl_bench.card.writing import replace_text
from ccl_bench.collect.describe.card_values import values_of
from ccl_bench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.collect.describe.observing import Observed

FILE_NAME = "workload_card.yaml"


def placed(target: Path, given: Path | None, found: list[Path]) -> Path:
    """Return the card in the run directory: the one there, else a copy of `given` or `found`, else empty."""
    card = target / FILE_NAME
    if given is not None and not (card.exists() and card.samefile(given)):
        shutil.copyfile(given, card)
    elif not card.exists() and found:
        shutil.copyfile(found[0], card)
    elif not card.exists():
        replace_text(card, template())
    return card


_OF_ANOTHER = {
    "Model-executor.framework.version": "Model-executor.framework.name",
    "Model-executor.communication_library.version": "Model-executor.communication_library.name",
    "workload.hardware.xpu_spec.memory_gb": "workload.hardware.xpu_spec.model",
}
"""Field -> the field that says of what it is."""


def filled(card: Path, seen: Observed) -> tuple[list[str], list[str]]:
    """Fill a card; return the fields that were filled, and where it contradicts what was observed."""
    values = values_of(seen)
    written = dict(_leaves(read_card(card).card))
    disagreeing = {
        name: value
        for name, value in values.items()
        if name in written and not isinstance(value, list | dict) and not _agree(written[name], value)
    }
    remarks = [
        f"{FILE_NAME} says {name} = {written[name]}, and {value} was observed; the card was left as it is"
        for name, value in disagreeing.items()
    ]
    # A version of torchtitan says nothing where a person wrote that something else ran.
    wanted = {name: value for name, value in values.items() if _OF_ANOTHER.get(name) not in disagreeing}
    try:
        return list(fill(card, wanted).filled), remarks
    except InputError as error:
        return [], [*remarks, str(error)]


def _leaves(part: Part, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field of a card that says something, by its path in the file."""
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        place = f"{path}.{key_of(name, info)}".lstrip(".")
        if isinstance(value, Part):
            yield from _leaves(value, place)
        elif value is not None:
            yield place, value


def _agree(written: object, value: object) -> bool:
    """Whether two values say the same; names may differ in case and punctuation, and one may say more."""
    if isinstance(written, bool) or isinstance(value, bool):
        return written == value
    if isinstance(written, int | float) and isinstance(value, int | float):
        return abs(written - value) <= 0.1 * abs(value) if isinstance(value, float) else written == value
    one, other = _plain(written), _plain(value)
    return one in other or other in one


def _plain(value: object) -> str:
    return "".join(letter for letter in str(value).lower() if letter.isalnum())
