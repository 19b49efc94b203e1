"""What a notebook shows of an answer: answers are plain data, and a higher package makes the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES: dict[type, Callable[[Any], str]] = {}
"""Kind of answer → what makes HTML of it."""


class Displayed:
    """An answer that notebooks show as its page, where one is registered."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        page = PAGES.get(type(self))
        return page(self) if page else None
