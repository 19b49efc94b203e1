"""Loops of JAX that nobody prepared for ccl-bench, each in a child of one process that has loaded JAX.

jax_loops.py FOLDER: each of `LOOPS` is a program whose run directory is FOLDER/its name, and whose exit
status and output lie beside it.
"""

from __future__ import annotations

import functools
import gc
import os

gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.

import jax  # noqa: E402
from forked_loops import run_loops  # noqa: E402

STEPS = 9
"""Steps of each loop; the recording is over after 2 + 1 profiled ones: --steps 4-5."""


def arrays():
    """Return parameters, and data that are larger than they are."""
    import jax.numpy as jnp

    return {"w": jnp.ones((8, 8))}, jnp.ones((64, 8))


def loss(parameters, x):
    import jax.numpy as jnp

    return jnp.mean(jnp.tanh(x @ parameters["w"]) ** 2)


def descend(parameters, gradients):
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)


def train_step(parameters, x):
    value, gradients = jax.value_and_grad(loss)(parameters, x)
    return descend(parameters, gradients), value


def own(step):
    """Put a range before a step that bears the number which the program gives it."""
    with jax.profiler.TraceAnnotation(f"own {step}"):
        pass


def plain(fail_at=None, start_at=None):
    """A step that gives its parameters away, and an evaluation after some of them."""
    step_of, evaluate = jax.jit(train_step, donate_argnums=0), jax.jit(loss)
    parameters, x = arrays()
    for step in range(STEPS):
        own(step)
        if step == start_at:
            jax.profiler.start_trace(os.environ["CCL_BENCH_OUTPUT"] + "/own")
        if step == fail_at:
            raise RuntimeError("the data ran out")
        parameters, _ = step_of(parameters, x)
        if step % 3 == 0:
            evaluate(parameters, x)
    jax.block_until_ready(parameters)


def marked():
    """Steps that the program marks itself, from 100; two functions are called in each."""
    step_of, evaluate = jax.jit(train_step), jax.jit(loss)
    parameters, x = arrays()
    for step in range(STEPS):
        with jax.profiler.StepTraceAnnotation("mine", step_num=100 + step):
            own(step)
            evaluate(parameters, x)
            parameters, _ = step_of(parameters, x)


def stages():
    """Gradients of three microbatches, then one update, a method, which returns the optimizer's state too."""

    @jax.jit
    def gradients_of(parameters, x):
        return jax.grad(jax.jit(loss))(parameters, x)

    class Optimizer:
        @functools.partial(jax.jit, static_argnames=("self", "rate"))
        def update(self, parameters, momentum, gradients, rate):
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
            return descend(parameters, momentum), momentum, rate

    parameters, x = arrays()
    optimizer, momentum = Optimizer(), jax.jit(lambda p: (p, p))(parameters)[0]
    for step in range(STEPS):
        own(step)
        for _ in range(3):
            gradients = gradients_of(parameters, x)
        parameters, momentum, _ = optimizer.update(parameters, momentum, gradients, rate=0.1)


def compiled_before():
    """A step that is compiled ahead of time."""
    parameters, x = arrays()
    step_of = jax.jit(train_step).lower(parameters, x).compile()
    for step in range(STEPS):
        own(step)
        parameters, _ = step_of(parameters, x)


def own_profiler():
    """A program with a profiler of its own from the beginning."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(os.environ["CCL_BENCH_OUTPUT"] + "/own", profiler_options=options):
        plain()


def late_profiler():
    """A program that starts a profiler of its own in the second recorded step."""
    plain(start_at=5)
    jax.profiler.stop_trace()


def fails():
    """A program that fails in the second recorded step."""
    plain(fail_at=5)


def once():
    """A program that calls each function once."""
    parameters, x = arrays()
    jax.jit(train_step)(parameters, x)


def behaves():
    """What JAX does with a compiled function, it does with a watched one."""
    import jax.numpy as jnp

    function = jax.jit(lambda x: x * 2)
    assert isinstance(function, jax.stages.Wrapped)
    x = jnp.arange(3.0)
    assert jax.vmap(function)(x).tolist() == function(x).tolist() == [0, 2, 4]
    assert jax.grad(lambda v: function(v).sum())(x).tolist() == [2, 2, 2]
    assert "multiply" in function.lower(x).as_text() or "add" in function.lower(x).as_text()
    assert function.eval_shape(x).shape == (3,)
    assert jax.jit(function)(x).tolist() == [0, 2, 4]
    assert "pjit" in str(jax.make_jaxpr(function)(x)) or "jit" in str(jax.make_jaxpr(function)(x))
    assert jax.checkpoint(function)(x).tolist() == [0, 2, 4]
    exported = jax.export.export(function)(x) if hasattr(jax, "export") else None
    assert exported is None or exported.call(x).tolist() == [0, 2, 4]
    function.clear_cache()


LOOPS = {
    each.__name__: each
    for each in (
        plain,
        marked,
        stages,
        compiled_before,
        own_profiler,
        late_profiler,
        fails,
        once,
        behaves,
    )
}


if __name__ == "__main__":
    run_loops(LOOPS)
