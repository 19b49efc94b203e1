"""Named things that can be listed, aliased and added by other packages."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import WeakSet

from ccl_bench.base.errors import UsageError
from ccl_bench.base.foreign import contained, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from importlib.metadata import EntryPoints
    from typing import Self

T = TypeVar("T")

_MISSPELT = 0.8
"""Least similarity of a misspelt word to the correct one."""


def spelling(word: str) -> str:
    """Return a word without the differences that carry no meaning: case, hyphens and spaces."""
    return word.strip().lower().replace("-", "_").replace(" ", "_")


def did_you_mean(word: str, known_words: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return a hint naming the closest known words, or an empty string; `cutoff` is the least similarity."""
    close = difflib.get_close_matches(word, list(known_words), n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(close)}?" if close else ""


@cache
def _installed() -> EntryPoints:
    """Return the entry points of all packages: finding them takes as long as a small trace."""
    return cast("EntryPoints", entry_points())  # another type before Python 3.12, with the same method


_REGISTRIES: WeakSet[Registry[Any]] = WeakSet()


def broken_plugins() -> list[tuple[str, str, str]]:
    """Return each plug-in that failed in this process: its name, its entry-point group, and why."""
    return sorted(
        (name, registry.group, reason) for registry in _REGISTRIES for name, reason in registry.broken.items()
    )


class Registry(Generic[T]):
    """A mapping from names and aliases to one kind of thing, open to plug-ins.

    Names are found in upper and lower case alike. The modules of `package` register the project's own, those
    below its folders too where it is `nested`. Other packages add theirs through the entry-point group
    `group`: each entry names a module whose import registers what it defines. A plug-in that fails to
    import is remembered in `broken` and never takes the others down. `suggest` knows what to ask for in
    place of words that are no name here, given such a word and the least likeness to one that it knows.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        package: str,
        *,
        nested: bool = False,
        suggest: Callable[[str, float], str] | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self._package = package
        self._nested = nested
        self.broken: dict[str, str] = {}
        self._suggest = suggest
        self._items: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._spellings: dict[str, str] = {}
        self._has_own = False
        self._has_plugins = False
        _REGISTRIES.add(self)

    def add(self, name: str, item: T, aliases: Iterable[str] = ()) -> None:
        """Register `item`; a name or alias that is taken is a programming error."""
        spellings = {spelling.casefold(): spelling for spelling in (name, *aliases)}
        if duplicates := spellings.keys() & self._spellings.keys():
            raise ValueError(f"{self.kind} {', '.join(sorted(duplicates))} is registered twice")
        self._spellings |= spellings
        self._items[name] = item
        self._aliases.update(dict.fromkeys(aliases, name))

    def has_plugins(self) -> bool:
        """Whether an installed package names plug-ins for this registry."""
        return bool(self._entries)

    @cached_property
    def _entries(self) -> EntryPoints:
        return _installed().select(group=self.group)

    def load(self) -> Self:
        """Import the modules of the registry's own package and every plug-in, once; return the registry."""
        if not self._has_own:
            package = importlib.import_module(self._package)
            walk = pkgutil.walk_packages if self._nested else pkgutil.iter_modules
            for module in walk(package.__path__, f"{self._package}."):
                importlib.import_module(module.name)
            self._has_own = True
        self.load_plugins()
        return self

    def load_plugins(self) -> None:
        """Import every plug-in of the entry-point group once."""
        if self._has_plugins:
            return
        self._has_plugins = True
        for entry in self._entries:
            try:
                with contained():
                    entry.load()
            except Exception as error:  # a stranger's module may raise anything
                self.broken[entry.name] = reason_of(error)

    def spelled(self, name: str) -> str:
        """Return a name or alias as it is registered; UsageError naming what was probably meant."""
        self.load_plugins()
        if spelling := self._spellings.get(name.casefold()):
            return spelling
        broken = "".join(f"; plug-in {entry} is broken: {reason}" for entry, reason in self.broken.items())
        suggest = self._suggest or (lambda *_: "")
        spellings = self._spellings.values()
        fix = (
            suggest(name, 1.0)
            or did_you_mean(name, spellings, cutoff=_MISSPELT)
            or suggest(name, _MISSPELT)
            or did_you_mean(name, spellings)
            or f"known: {', '.join(sorted(self._items))}"
        )
        raise UsageError(f"unknown {self.kind} {name!r}{broken}", fix=fix)

    def canonical(self, name: str) -> str:
        """Return the registered name behind `name` or an alias of it; UsageError as of `spelled`."""
        spelling = self.spelled(name)
        return self._aliases.get(spelling, spelling)

    def get(self, name: str) -> T:
        """Return the item called `name`, or raise UsageError naming the nearest ones."""
        self.load_plugins()
        return self._items[name] if name in self._items else self._items[self.canonical(name)]

    def names(self) -> list[str]:
        """Return the canonical names, sorted."""
        self.load_plugins()
        return sorted(self._items)

    def aliases(self) -> dict[str, str]:
        """Return alias → canonical name."""
        self.load_plugins()
        return dict(self._aliases)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items in order of their names."""
        return iter([self._items[name] for name in self.names()])

    def __contains__(self, name: str) -> bool:
        """Whether `name` is a name or an alias."""
        self.load_plugins()
        return name.casefold() in self._spellings
