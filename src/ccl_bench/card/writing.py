"""Writing whole cards: a card with a comment at each field, or a mapping that carries its own comments."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from ccl_bench.card.model import Card
from ccl_bench.card.template import card_text
from ccl_bench.errors import UsageError
from ccl_bench.storage import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping


def write_card(card: Card | Mapping[str, Any], path: str | Path, *, overwrite: bool = False) -> None:
    """Write a card laid out as the template, or a mapping that ruamel.yaml read with its comments."""
    target = Path(path)
    if target.exists() and not overwrite:
        raise UsageError("exists already", where=str(path), fix="choose another name, or allow overwriting")
    replace_text(target, card_text(card) if isinstance(card, Card) else _dumped(card))


def replace_text(target: Path, text: str) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file."""
    target = target.resolve()
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
        temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o644)


def _dumped(card: Mapping[str, Any]) -> str:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 10**6
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(card, stream)
    return stream.getvalue()
