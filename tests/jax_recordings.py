"""Runs of JAX, recorded once for all tests, and what each program states of itself.

The numbers are those of `jax_programs.py`, written down from its arrays and its mesh; none is from a trace.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from shared import made_once, to_record

if TYPE_CHECKING:
    import pytest

PROGRAM = Path(__file__).parent / "jax_programs.py"
RANKS, STEPS = 4, 3
"""Devices, two of each process, and marked or unmarked steps of each program."""

ALL = ((0, 1, 2, 3),)
PAIRS = ((0, 1), (2, 3))
ACROSS = ((0, 2), (1, 3))


@dataclass(frozen=True)
class Call:
    """A collective that each device calls in a step."""

    kind: str
    instruction: str
    """Its name in the compiled program, as XLA writes the kind."""
    groups: tuple[tuple[int, ...], ...]
    dtype: str
    element_bytes: int
    sent: int
    """Elements that a device gives."""
    received: int
    """Elements that it gets."""
    times: int = 1
    """Calls in a step."""


@dataclass(frozen=True)
class Stated:
    """What a program does in one step on one device."""

    calls: tuple[Call, ...]
    products: tuple[tuple[int, int, int], ...]
    """Rows, inner side and columns of each product of matrices."""
    rounds: int = 1
    """How often the products are computed."""
    is_marked: bool = True

    @property
    def flops(self) -> int:
        """Floating-point operations of the products."""
        return self.rounds * sum(2 * prod(sides) for sides in self.products)


def _data_parallel(*, is_marked: bool = True) -> Stated:
    """32 of 64 rows on each device; the gradients of both layers are reduced in one call."""
    forward = (32, 32, 128), (32, 128, 16)
    backward = (128, 32, 16), (32, 16, 128), (32, 32, 128)
    gradients = 32 * 128 + 128 * 16
    call = Call("all_reduce", "all-reduce", ACROSS, "f32", 4, gradients, gradients)
    return Stated((call,), (*forward, *backward), is_marked=is_marked)


_PAIR_RESULT = 16 * 40
_LAYER = 64 * 96
_TOKENS = 32 * 64
_ACTIVATIONS = 16 * 64

STATED = {
    "data parallel": _data_parallel(),
    "tensor parallel": Stated(
        (Call("all_reduce", "all-reduce", PAIRS, "f32", 4, _PAIR_RESULT, _PAIR_RESULT),),
        ((16, 64, 128), (16, 128, 40)),
    ),
    "pipeline": Stated(
        (Call("send_recv", "collective-permute", ALL, "f32", 4, _ACTIVATIONS, _ACTIVATIONS, times=7),),
        ((16, 64, 64),),
        rounds=7,
    ),
    "sharded": Stated(
        (
            Call("all_gather", "all-gather", ALL, "f32", 4, _LAYER // 4, _LAYER),
            Call("reduce_scatter", "reduce-scatter", ALL, "f32", 4, _LAYER, _LAYER // 4),
        ),
        ((8, 64, 96), (64, 8, 96)),
    ),
    "experts": Stated(
        (Call("all_to_all", "all-to-all", PAIRS, "f16", 2, _TOKENS, _TOKENS, times=2),),
        ((32, 64, 64),),
    ),
    "ahead": _data_parallel(),
    "unmarked": _data_parallel(is_marked=False),
}

SENDS = ((0, 1), (1, 2), (2, 3))
"""Source and target of the messages of the pipeline: the last stage sends nothing."""


def jax_recording(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return the folder with the profiles of a program, for tests to read; who asks first runs them all."""
    to_record("jax")
    return made_once(factory, "jax recordings", record)[0] / name


def record(folder: Path) -> None:
    """Run the programs in two processes that find each other."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(port), str(process)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        for process in range(2)
    ]
    try:
        ended = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(ended):
        raise RuntimeError(f"{PROGRAM.name} failed")


def traces(recording: Path, ending: str = ".xplane.pb") -> list[Path]:
    """Return the profiles of a recording, in the order of processes."""
    return sorted(recording.glob(f"**/plugins/profile/*/*{ending}"))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
