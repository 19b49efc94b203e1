"""Names of kernels as people read them: without template arguments, parameters and return type."""

from __future__ import annotations

import re

from ccl_bench.catalog.collectives import SEARCHED

LONGEST = 120
"""Characters of a short name at most."""

FOLDED = "<...>"
"""What stands for template arguments."""

_RETURNS = re.compile(r"^(?:void|int|bool|auto|static|unsigned|float) +")
_OPERATION = re.compile(r"\b(?:\w+Functor\w*|\w+_kernel_cuda\b|\w+Ops\b|cutlass_\w+)")
"""What template arguments name that sets one kernel apart from others of its template."""


def short_name(name: str) -> str:
    """Return the name of a kernel with its template arguments folded, at most `LONGEST` characters.

    Of folded arguments the name of the operation stays, as in `elementwise_kernel<...CUDAFunctor_add...>`.
    """
    plain = name[:SEARCHED].replace("(anonymous namespace)::", "")
    text, folded = _without_brackets(_RETURNS.sub("", plain))
    match = _OPERATION.search(folded)
    if match and FOLDED in text:
        text = text.replace(FOLDED, f"<...{match[0]}...>", 1)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _without_brackets(name: str) -> tuple[str, str]:
    """Return a name without the text in `<>`, up to its parameters; and the text in brackets."""
    outside: list[str] = []
    folded: list[str] = []
    depth = 0
    for place, char in enumerate(name):
        if char == "<" and not name.startswith(("operator<", "<lambda"), max(0, place - 8)):
            depth += 1
            if depth == 1:
                outside.append(FOLDED)
                continue
        if char == ">" and depth:
            depth -= 1
            continue
        if char == "(" and not depth and outside:
            break
        (folded if depth else outside).append(char)
    if depth:
        return name, ""
    return "".join(outside).strip(), "".join(folded)
