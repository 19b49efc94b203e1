"""Hooks in PyTorch for an unchanged program: they report its optimizers and its own profilers.

PyTorch has hooks for the steps of optimizers. They run inside the range `Optimizer.step#...`, which would
then extend into the next step, and they miss steps that a gradient scaler skips; so functions are wrapped.
Functions that torch.compile traces stay unchanged.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from ccl_bench.collect.injection.steps import StepCounter
from ccl_bench.collect.injection.watched_loop import WatchedLoop

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = "_ccl_bench_watches"


def install(torch: Any) -> WatchedLoop:
    """Install hooks in the optimizers of this process, and return the loop that they report to."""
    loop = WatchedLoop(counter := StepCounter(), "torch")
    is_compiling = torch.compiler.is_compiling
    optimizer = torch.optim.Optimizer
    scaler = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler

    def outermost(function: Callable[..., Any], report: Callable[..., None]) -> Callable[..., Any]:
        """Report a call after it has ended, unless it runs inside another one."""

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or loop.is_over:
                return function(*args, **kwargs)
            loop.depth += 1
            try:
                result = function(*args, **kwargs)
            finally:
                loop.depth -= 1
            if not loop.depth:
                report(*args, **kwargs)
            return result

        # torch.compile of some versions looks for what is wrapped, to remove torch's own hooks.
        del watched.__wrapped__
        watched.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        setattr(watched, _MARK, True)
        return watched

    def stepped(instance: Any) -> None:
        loop.handle(counter.stepped(id(instance)))

    def watch_class(self: Any, *_: Any, **__: Any) -> None:
        """Wrap the class of a new optimizer, after torch has put its own range around the step."""
        if not getattr(type(self).step, _MARK, False):
            type(self).step = outermost(type(self).step, lambda instance, *_, **__: stepped(instance))

    optimizer.__init__ = _followed(optimizer.__init__, watch_class)
    optimizer.zero_grad = outermost(
        optimizer.zero_grad, lambda instance, *_, **__: loop.handle(counter.zeroed(id(instance)))
    )
    scaler.step = outermost(scaler.step, lambda _, instance, *__, **___: stepped(instance))
    torch.autograd.backward = _followed(torch.autograd.backward, lambda *_, **__: counter.backward())
    profilers = torch.profiler.profiler._KinetoProfile, torch.profiler.profile
    for profiler in profilers:
        profiler.start = _preceded(profiler.start, loop.profiler_starts)
    legacy = torch.autograd.profiler.profile
    legacy.__enter__ = _preceded(legacy.__enter__, loop.profiler_starts)
    return loop


def _followed(function: Callable[..., Any], report: Callable[..., None]) -> Callable[..., Any]:
    """Return a function that reports each call after it has ended."""

    @functools.wraps(function)
    def followed(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        report(*args, **kwargs)
        return result

    return followed


def _preceded(function: Callable[..., Any], report: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that reports each call before it begins."""

    @functools.wraps(function)
    def preceded(*args: Any, **kwargs: Any) -> Any:
        report()
        return function(*args, **kwargs)

    return preceded
