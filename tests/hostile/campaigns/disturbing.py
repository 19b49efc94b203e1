"""What campaigns share that disturb commands at random moments for some minutes."""

from __future__ import annotations

import argparse
import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def attempts(about: str | None) -> Iterator[tuple[str, random.Random]]:
    """Yield the name of each attempt and its own chance, until the minutes of the command line are over.

    The seed and the number of an attempt are its name, so that it can be made again.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    end, number = time.monotonic() + 60 * options.minutes, 0
    while time.monotonic() < end:
        name = f"{options.seed}/{number}"
        yield name, random.Random(name)
        number += 1


def broken(status: int, err: str, expected: set[int]) -> str:
    """Return how a command ended that printed a traceback or has a status of its own; empty for others."""
    return f"status {status}: {err[-600:]}" if "Traceback" in err or status not in expected else ""
