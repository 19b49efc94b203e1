"""Hooks in JAX for an unchanged program: they report its compiled functions, marks and profilers.

The results of `jax.jit` are wrapped, which costs about a microsecond per call. Functions that JAX itself
compiles, or that are traced into another function, stay unchanged.

If the program marks its steps for the profiler, the end of a mark ends a step. Otherwise the call of the
function with the largest result does: a training step returns the new parameters and the state of the
optimizer. Of functions with equally large results, the one whose first call came last ends a step.

A function with a larger result that is not called again, while another one is called more often than
before, does not end a step: it made the parameters, or evaluates them.
"""

from __future__ import annotations

import functools
import itertools
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ccl_bench.collect.injection.steps import Beat
from ccl_bench.collect.injection.watched_loop import WatchedLoop

if TYPE_CHECKING:
    from collections.abc import Callable

_UNNAMED = "a compiled program"
_NUMBER = "_ccl_bench_number"
_COMPILERS = ("jit", "pmap")


def install(jax: Any) -> WatchedLoop:
    """Install hooks in the compiled functions of this process, and return the loop that they report to."""
    counter = JaxStepCounter()
    loop = WatchedLoop(counter, "jax")
    calls = CompiledCalls(jax, counter, loop)
    for name in _COMPILERS:
        setattr(jax, name, _watched_compiler(getattr(jax, name), calls))
    compiled = jax.stages.Compiled
    compiled.__call__ = calls.watched_method(compiled.__call__)
    _watch_marks(jax.profiler.StepTraceAnnotation, counter, loop)
    _watch_profiler(jax, loop)
    return loop


class CompiledCalls:
    """Reports the outermost calls of compiled functions."""

    def __init__(self, jax: Any, counter: JaxStepCounter, loop: WatchedLoop) -> None:
        from jax._src import core

        self._leaves: Any = jax.tree_util.tree_leaves
        self._is_clean: Any = core.trace_state_clean
        self._counter, self._loop = counter, loop
        self._numbers = itertools.count()

    def call(self, key: object, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function, report the call, and return its result; `key` identifies the repeated function."""
        loop = self._loop
        if loop.is_over or loop.depth:
            return function(*args, **kwargs)
        loop.depth += 1
        try:
            result = function(*args, **kwargs)
        finally:
            loop.depth -= 1
        if self._is_clean():
            with loop.undisturbed():
                number = self._number(key)
                returned = 0
                if self._counter.is_new(number):
                    sizes = (getattr(leaf, "nbytes", 0) for leaf in self._leaves(result))
                    returned = sum(size for size in sizes if isinstance(size, int))
                loop.handle(self._counter.called(number, getattr(key, "__name__", _UNNAMED), returned))
        return result

    def watched_method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that reports the calls of each object."""

        @functools.wraps(method)
        def watched(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return self.call(instance, method, instance, *args, **kwargs)

        return watched

    def _number(self, key: Any) -> int:
        """Return the number of a function, or the id of an object without attributes."""
        number: int | None = getattr(key, _NUMBER, None)
        if number is None:
            number = next(self._numbers)
            try:
                setattr(key, _NUMBER, number)
            except AttributeError:
                return id(key)
        return number


def _watched_compiler(compiler: Callable[..., Any], calls: CompiledCalls) -> Callable[..., Any]:
    """Return `jax.jit` with a result that reports its calls; without a function it returns a decorator."""

    @functools.wraps(compiler)
    def watched(*args: Any, **kwargs: Any) -> Any:
        compiled = compiler(*args, **kwargs)
        if hasattr(compiled, "lower"):
            return CompiledFunction(compiled, calls)
        return lambda function: CompiledFunction(compiled(function), calls)

    return watched


class CompiledFunction:
    """A result of `jax.jit` that reports each call."""

    def __init__(self, inner: Any, calls: CompiledCalls) -> None:
        functools.update_wrapper(self, inner, updated=())
        self._inner, self._calls = inner, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._calls.call(self, self._inner, *args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the bound method, if the function is an attribute of a class."""
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        """Return this attribute of the compiled function."""
        return getattr(self._inner, name)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Return the program of these arguments, as the compiled function does."""
        return self._inner.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Return the trace of these arguments, as the compiled function does."""
        return self._inner.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the shape of the result, as the compiled function does."""
        return self._inner.eval_shape(*args, **kwargs)


def _watch_marks(annotation: Any, counter: JaxStepCounter, loop: WatchedLoop) -> None:
    """Make the class for marks of steps report the end of each mark."""
    begin, leave = annotation.__init__, annotation.__exit__

    @functools.wraps(begin)
    def named(self: Any, name: str, **kwargs: Any) -> None:
        begin(self, name, **kwargs)
        self.ccl_bench_name = name

    @functools.wraps(leave)
    def reported(self: Any, *args: Any) -> Any:
        result = leave(self, *args)
        if not loop.is_over and not loop.is_busy:
            loop.handle(counter.marked(self.ccl_bench_name))
        return result

    annotation.__init__, annotation.__exit__ = named, reported


def _watch_profiler(jax: Any, loop: WatchedLoop) -> None:
    """Stop our profiler before the program starts its own."""
    from jax._src import profiler

    start = jax.profiler.start_trace

    @functools.wraps(start)
    def preceded(*args: Any, **kwargs: Any) -> Any:
        loop.profiler_starts()
        return start(*args, **kwargs)

    jax.profiler.start_trace = profiler.start_trace = preceded


@dataclass(slots=True)
class _Function:
    """A compiled function that was called."""

    name: str
    returned: int
    """Bytes that its first call returned."""
    calls: int = 0
    is_rare: bool = False
    """Whether it is known not to end a step."""


class JaxStepCounter:
    """Counts the steps of a program by its marks, or by the calls of its compiled functions."""

    late: ClassVar[str] = (
        "after step {step}, while the profiler ran, another function with a larger result was "
        "called for the first time; if it ends the steps of this program, record later "
        "ones: ccl-bench collect --steps"
    )

    def __init__(self) -> None:
        self.is_settled = False
        """Whether the choice of the call that ends a step is final."""
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
        """Whether a function, given by its id, was not called yet."""
        return function not in self._functions

    def marked(self, name: str) -> Beat:
        """Return the meaning of the end of a mark; only marks of the first name count."""
        if self.marks:
            return Beat.NEXT if name == self._mark else Beat.NOTHING
        if self.is_settled:
            return Beat.NOTHING
        self.marks, self._mark, self.begun = True, name, 1
        return Beat.FIRST

    def called(self, function: int, name: str, returned: int) -> Beat:
        """Return the meaning of a call of a function whose first result had this number of bytes."""
        is_new = self.is_new(function)
        current = self._functions.setdefault(function, _Function(name, returned))
        current.calls += 1
        if self.marks or current.is_rare:
            return Beat.NOTHING
        if function == self._leader:
            return Beat.NEXT
        leader = self._functions.get(self._leader) if self._leader is not None else None
        replaces = leader is None or (is_new and current.returned >= leader.returned)
        if leader is not None and not replaces:
            # The leader was called once, and this one since then more often than before.
            before = self._before.get(function, 0)
            if leader.calls == 1 and current.calls - before > max(before, 1):
                leader.is_rare = replaces = not self.is_settled
        if not replaces:
            return Beat.NOTHING
        if self.is_settled:
            return Beat.LATE
        self._leader, self.begun = function, current.calls if current.calls <= _FIRST_CALLS else 1
        self._before = {
            other_id: other_function.calls
            for other_id, other_function in self._functions.items()
            if other_id != function
        }
        return Beat.FIRST


_FIRST_CALLS = 2
"""Number of earlier calls of a new leader that count as steps; with more, the count restarts."""
