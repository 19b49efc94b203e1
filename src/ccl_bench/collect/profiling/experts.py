"""Counting how many tokens went to which expert, from what a router returns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ccl_bench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class ExpertCounts:
    """Tokens of each expert by layer, summed over the steps in which counting is on."""

    def __init__(self) -> None:
        self.is_on = False
        self._tokens: dict[str, Any] = {}

    def watch(
        self,
        router: Any,
        *,
        layer: int | str,
        experts: int,
        chosen: Callable[[Any], Any] | None = None,
    ) -> None:
        """Count what `router`, a module, chooses: `chosen` takes the experts' numbers out of its output.

        Without `chosen` they are the output's only tensor of whole numbers.
        """
        take = chosen or _whole_numbers

        def count(_module: Any, _inputs: Any, output: Any) -> None:
            if self.is_on:
                self._add(str(layer), experts, take(output))

        router.register_forward_hook(count)

    def _add(self, layer: str, experts: int, numbers: Any) -> None:
        """Add on the device, without waiting for it."""
        flat = numbers.detach().reshape(-1).long()
        if layer not in self._tokens:
            self._tokens[layer] = flat.new_zeros(experts)
        self._tokens[layer].scatter_add_(0, flat, flat.new_ones(()).expand_as(flat))

    def write(self, file: Path, rank: int) -> None:
        """Write what was counted, as `moe_assignments` of one rank; nothing where nothing was."""
        if self._tokens:
            layers = {layer: counts.tolist() for layer, counts in self._tokens.items()}
            file.write_text(json.dumps({"rank": rank, "layers": layers}) + "\n", encoding="utf-8")


def _whole_numbers(output: Any) -> Any:
    """Return the only tensor of whole numbers in a router's output."""
    parts = output if isinstance(output, tuple | list) else [output]
    found = [p for p in parts if hasattr(p, "is_floating_point") and not p.is_floating_point()]
    if len(found) != 1:
        raise UsageError(
            f"a router returned {len(found)} tensors of whole numbers, so that none is known to name experts",
            fix="pass chosen=lambda output: output[1], or whichever it is",
        )
    return found[0]
