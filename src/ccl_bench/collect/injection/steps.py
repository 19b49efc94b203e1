"""Detection of the call that ends a step, from calls of optimizers.

A step ends when an optimizer has stepped. Several calls without a backward pass between them, such as one
for each group of parameters, count as one. Of several optimizers the least frequent one ends the step; of
equally frequent ones the last.

Steps of an optimizer that is part of a compiled graph are not visible; then its zero_grad ends a step.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import ClassVar


class Beat(Enum):
    """The meaning of a call for the count of steps."""

    NOTHING = 0
    """It is inside a step."""
    FIRST = 1
    """It ends the first step; earlier steps do not count."""
    NEXT = 2
    """It ends another step."""
    LATE = 3
    """It may end steps, but the choice of another call is final."""


class _RarestCaller:
    """Finds, among optimizers that are called in a loop, the one whose call ends a step."""

    def __init__(self) -> None:
        self._leader: int | None = None
        self._optimizers: set[int] = set()
        self._calls: Counter[int] = Counter()
        self._backward_at_call: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was called."""
        return not self._optimizers

    def called(self, optimizer: int, backwards: int, *, is_settled: bool) -> Beat:
        """Return the meaning of a call after backward passes; if `is_settled`, the leader stays."""
        if backwards and self._backward_at_call.get(optimizer) == backwards:
            return Beat.NOTHING
        self._backward_at_call[optimizer] = backwards
        self._calls[optimizer] += 1
        is_new = optimizer not in self._optimizers
        self._optimizers.add(optimizer)
        if optimizer == self._leader:
            return Beat.NEXT
        if not (is_new or self._calls[optimizer] + 1 < self._calls[self._leader or 0]):
            return Beat.NOTHING
        if is_settled:
            return Beat.LATE if is_new else Beat.NOTHING
        self._leader, self._calls = optimizer, Counter({optimizer: 1})
        return Beat.FIRST


class StepCounter:
    """Counts the steps of a program by the calls of its optimizers."""

    late: ClassVar[str] = (
        "after step {step}, while the profiler ran, another optimizer stepped for the first time; if it "
        "ends the steps of this program, record later ones: ccl-bench collect --steps"
    )
    marks: ClassVar[bool] = False
    """Whether the program itself marks its steps for the profiler."""
    begun: ClassVar[int] = 1
    """Steps that have ended when the first beat comes."""

    def __init__(self) -> None:
        self.is_settled = False
        """Whether the choice of the optimizer that ends a step is final."""
        self._backwards = 0
        self._steps, self._zero_grads = _RarestCaller(), _RarestCaller()

    @property
    def end(self) -> str:
        """The call that ends a step."""
        return "optimizer.zero_grad()" if self._steps.is_empty else "optimizer.step()"

    def backward(self) -> None:
        """Count a backward pass."""
        self._backwards += 1

    def stepped(self, optimizer: int) -> Beat:
        """Return the meaning of the step of an optimizer, given by its id."""
        if self.is_settled and self._steps.is_empty:
            return Beat.NOTHING
        return self._steps.called(optimizer, self._backwards, is_settled=self.is_settled)

    def zeroed(self, optimizer: int) -> Beat:
        """Return the meaning of clearing the gradients of an optimizer; none if its steps are visible."""
        if not self._backwards or not self._steps.is_empty:
            return Beat.NOTHING
        return self._zero_grads.called(optimizer, self._backwards, is_settled=self.is_settled)
