"""Which call of a JAX program ends a step, where the functions are seen that it compiles.

Where the program marks its steps for the profiler, the end of a mark ends one. Else the call of the function
that returns most does: a step of training returns the new parameters, and the state of the optimizer with
them. Of functions that return equally much the one that was called last for the first time ends a step.

A function that returns more and is not called again, though another one is called more often than before it,
is none of a step: it made the parameters, or evaluates them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ccl_bench.collect.injection.steps import Beat


@dataclass(slots=True)
class _Function:
    """A compiled function that was called."""

    name: str
    returned: int
    """Bytes that its first call returned."""
    calls: int = 0
    is_rare: bool = False
    """Whether it is known to be none of a step."""


class JaxStepCounter:
    """Counts the steps of a program by its marks, or by the calls of its compiled functions."""

    late: ClassVar[str] = (
        "another function that returns more was called for the first time after step {step}, when the "
        "profiler ran; if it ends the steps of this program, record later ones: ccl-bench collect --steps"
    )

    def __init__(self) -> None:
        self.is_settled = False
        """Whether the call that ends a step is chosen for good."""
        self.marks = False
        """Whether the program itself marks its steps for the profiler."""
        self.begun = 1
        """Steps that have ended when the first beat comes."""
        self._mark = ""
        self._functions: dict[int, _Function] = {}
        self._leader: int | None = None
        self._before: dict[int, int] = {}
        """Calls of the other functions when the leader was chosen."""

    @property
    def end(self) -> str:
        """The call that ends a step."""
        if self.marks:
            return f"StepTraceAnnotation({self._mark!r})"
        return f"{self._functions[self._leader].name}()" if self._leader is not None else ""

    def is_new(self, function: int) -> bool:
        """Whether a function, known by its id, was not called yet."""
        return function not in self._functions

    def marked(self, name: str) -> Beat:
        """Return what the end of a mark means; marks of the first name count."""
        if self.marks:
            return Beat.NEXT if name == self._mark else Beat.NOTHING
        if self.is_settled:
            return Beat.NOTHING
        self.marks, self._mark, self.begun = True, name, 1
        return Beat.FIRST

    def called(self, function: int, name: str, returned: int) -> Beat:
        """Return what a call means of a function that returned so many bytes when it was new."""
        is_new = self.is_new(function)
        own = self._functions.setdefault(function, _Function(name, returned))
        own.calls += 1
        if self.marks or own.is_rare:
            return Beat.NOTHING
        if function == self._leader:
            return Beat.NEXT
        leader = self._functions.get(self._leader) if self._leader is not None else None
        replaces = leader is None or (is_new and own.returned >= leader.returned)
        if leader is not None and not replaces and self._is_rarer(leader, function):
            leader.is_rare = replaces = not self.is_settled
        if not replaces:
            return Beat.NOTHING
        if self.is_settled:
            return Beat.LATE
        self._leader, self.begun = function, own.calls if own.calls <= _FIRST_CALLS else 1
        self._before = {other: known.calls for other, known in self._functions.items() if other != function}
        return Beat.FIRST

    def _is_rarer(self, leader: _Function, function: int) -> bool:
        """Whether the leader was called once, and a function since then more often than before."""
        before = self._before.get(function, 0)
        since = self._functions[function].calls - before
        return leader.calls == 1 and since > max(before, 1)


_FIRST_CALLS = 2
"""Calls of a function that count as steps when it is found to end them; after more the count begins anew."""
