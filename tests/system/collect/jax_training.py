"""One of two processes that train with JAX on two CPU devices each, joined by gloo.

jax_training.py PROCESS PORT STEPS [OUTPUT]: with OUTPUT the loop records itself there, else it knows nothing
of ccl-bench.
"""

from __future__ import annotations

import contextlib
import os
import sys

os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main(process: int, port: str, steps: int, output: str = "") -> None:
    """Train; the gradient is reduced over four devices in one call of 4 kB."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    @jax.jit
    def train_step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum((x @ w) ** 2))(weights)
        return weights - 1e-6 * gradient, loss

    def held(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    weights = held(np.ones((32, 32), np.float32), whole)
    x = held(np.ones((16, 32), np.float32), divided)
    with _recording(output) as recording:
        for _ in range(steps):
            weights, loss = train_step(weights, x)
            if recording:
                recording.step(tokens=16, loss=loss)


def _recording(output: str) -> contextlib.AbstractContextManager:
    if not output:
        return contextlib.nullcontext()
    import ccl_bench

    schedule = ccl_bench.Schedule(skip=1, timed=3, warmup=1, active=3)
    return ccl_bench.profile(output, schedule=schedule)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
