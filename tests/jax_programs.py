"""Programs that JAX records, all in one pair of processes with two CPU devices each, joined by gloo.

jax_programs.py FOLDER PORT PROCESS: profiles each of `PROGRAMS` into FOLDER/NAME/pPROCESS, and writes what
XLA made of it, the compiled program as text, to FOLDER/NAME/program.txt. `jax_recordings.py` states what
must come out.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Callable

P = PartitionSpec
STEPS = 3


def mesh_of(*sides: int, names: tuple[str, ...]) -> Mesh:
    """Return all devices as a mesh."""
    return Mesh(np.array(jax.devices()).reshape(sides), names)


def placed(mesh: Mesh, spec: PartitionSpec, shape: tuple[int, ...], dtype: Any = np.float32) -> jax.Array:
    """Return an array of small numbers, divided over the devices of a mesh."""
    values = (np.arange(np.prod(shape)) % 7 / 64).astype(dtype).reshape(shape)
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda index: values[index])


def data_parallel() -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """Two layers, half of the batch on two devices each: XLA adds the all-reduce of the gradients."""
    mesh = mesh_of(2, 2, names=("data", "copy"))

    def loss(first: jax.Array, second: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum((jnp.tanh(x @ first) @ second) ** 2)

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def train_step(first: jax.Array, second: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        one, two = jax.grad(loss, (0, 1))(first, second, x)
        return first - 1e-3 * one, second - 1e-3 * two

    x = placed(mesh, P("data"), (64, 32))
    return train_step, (placed(mesh, P(), (32, 128)), placed(mesh, P(), (128, 16)), x)


def tensor_parallel() -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """The forward pass of two layers, the first divided by columns and the second by rows."""
    mesh = mesh_of(2, 2, names=("data", "model"))

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P("data")))
    def forward(first: jax.Array, second: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ first) @ second

    first, second = placed(mesh, P(None, "model"), (64, 256)), placed(mesh, P("model", None), (256, 40))
    return forward, (first, second, placed(mesh, P("data"), (32, 64)))


def pipeline() -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """Four stages and four microbatches: seven rounds of a layer and a send to the next stage, in a loop."""
    mesh = mesh_of(4, names=("stage",))

    def rounds(layer: jax.Array, x: jax.Array) -> jax.Array:
        stage = jax.lax.axis_index("stage")

        def one(received: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            given = jnp.where(stage == 0, x[number % 4], received)
            made = jnp.tanh(given @ layer[0])
            return jax.lax.ppermute(made, "stage", [(0, 1), (1, 2), (2, 3)]), made

        begin = jax.lax.pcast(jnp.zeros_like(x[0]), ("stage",), to="varying")
        return jax.lax.scan(one, begin, jnp.arange(7))[1]

    step = jax.jit(jax.shard_map(rounds, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P("stage")))
    return step, (placed(mesh, P("stage"), (4, 64, 64)), placed(mesh, P(), (4, 16, 64)))


def sharded() -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """Parameters divided by four: gathered for the step, their gradients reduced and scattered."""
    mesh = mesh_of(4, names=("shard",))

    def loss(part: jax.Array, x: jax.Array) -> jax.Array:
        layer = jax.lax.all_gather(part, "shard", tiled=True)
        return jnp.sum(jnp.tanh(x @ layer))

    def step(part: jax.Array, x: jax.Array) -> jax.Array:
        return part - 1e-3 * jax.grad(loss)(part, x)

    specs = P("shard"), P("shard")
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P("shard"))), (
        placed(mesh, P("shard"), (64, 96)),
        placed(mesh, P("shard"), (32, 64)),
    )


def experts() -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """Tokens go to the experts of a pair of devices and come back: two all-to-alls around a layer."""
    mesh = mesh_of(2, 2, names=("data", "expert"))

    def step(tokens: jax.Array, expert: jax.Array) -> jax.Array:
        exchange = partial(jax.lax.all_to_all, axis_name="expert", split_axis=0, concat_axis=0, tiled=True)
        return exchange(jnp.tanh(exchange(tokens) @ expert[0]))

    specs = P(("data", "expert")), P("expert")
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs[0])
    tokens = placed(mesh, specs[0], (128, 64), np.float16)
    return jax.jit(mapped), (tokens, placed(mesh, specs[1], (2, 64, 64), np.float16))


def waiting(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Run steps, each marked, and each to its end."""
    for number in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            jax.block_until_ready(function(*arguments))


def ahead(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Dispatch marked steps without a wait: what they compute ends after their marks."""
    *parameters, x = arguments
    for number in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            parameters = function(*parameters, x)
    jax.block_until_ready(parameters)


def unmarked(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Run steps that nothing marks."""
    for _ in range(STEPS):
        jax.block_until_ready(function(*arguments))


PROGRAMS = {
    "data parallel": (data_parallel, waiting),
    "tensor parallel": (tensor_parallel, waiting),
    "pipeline": (pipeline, waiting),
    "sharded": (sharded, waiting),
    "experts": (experts, waiting),
    "ahead": (data_parallel, ahead),
    "unmarked": (data_parallel, unmarked),
}
"""Name → what it computes, and how its steps are run."""


def record(folder: Path, name: str, process: int) -> None:
    """Profile one program, and write what XLA compiled."""
    make, run = PROGRAMS[name]
    function, arguments = make()
    compiled = function.lower(*arguments).compile()
    if process == 0:
        (folder / "program.txt").write_text(compiled.as_text())
    jax.block_until_ready(function(*arguments))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(name == "data parallel")
    with jax.profiler.trace(folder / f"p{process}", profiler_options=options):
        run(function, arguments)


def write_again(folder: Path, corpus: Path) -> None:
    """Let JAX write the profiles of others as it writes its own: with a trace for viewers beside each."""
    from jax._src.lib import _profiler

    for profile in sorted(corpus.rglob("*.xplane.pb")):
        target = folder / profile.relative_to(corpus).parent
        _profiler.ProfilerSession(jax.profiler.ProfileOptions()).export(profile.read_bytes(), str(target))


def main(folder: Path, port: str, process: int) -> None:
    """Run the programs one after the other."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    for name in PROGRAMS:
        (folder / name).mkdir(exist_ok=True)
        record(folder / name, name, process)
    if process == 0 and "CCL_BENCH_CORPUS" in os.environ:
        write_again(folder / "corpus", Path(os.environ["CCL_BENCH_CORPUS"], "xplane"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
