"""What shows that a process worked on an accelerator: collective backends, operators."""

from __future__ import annotations

import re

from ccl_bench.catalog.facts import facts

_WORD = re.compile(r"[a-z]+")


def accelerator_backend(text: str) -> str:
    """Return the backend in a text such as `cuda:nccl` that moves tensors of accelerators; empty for none.

    Beside a backend of the CPU, as in `cpu:gloo,cuda:nccl`, it does not say where tensors are.
    """
    words = _WORD.findall(text.lower())
    if any(word in _names("host_backend") for word in words):
        return ""
    return next((word for word in words if word in _names("backend")), "")


def operator_pattern() -> str:
    """Return the pattern of the names of operators that only run on an accelerator."""
    return "|".join(f"(?:{row['match']})" for row in facts("accelerators")["operator"])


def _names(table: str) -> set[str]:
    return {name for row in facts("accelerators")[table] for name in row["names"]}
