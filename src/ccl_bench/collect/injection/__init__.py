"""Recording of unchanged torch and JAX programs: the code that `ccl-bench collect` injects.

The folder `startup` is put first on PYTHONPATH. Its `sitecustomize` waits for the import of torch or JAX
and then installs the hooks (`hooks`, `jax_hooks`), which count steps and record them like
`ccl_bench.profile`.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INJECT_VARIABLE = "CCL_BENCH_INJECT"
"""`0` disables ccl-bench in a process and in those that it starts."""

_STARTUP = Path(__file__).resolve().parent / "startup"
_OPTIONS_WITH_VALUE = "XW"
_DEAF_OPTIONS = {
    "I": "ignores PYTHONPATH",
    "E": "ignores PYTHONPATH",
    "S": "runs no sitecustomize",
}


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment allows the hooks."""
    return environment.get(INJECT_VARIABLE) != "0"


def startup_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which Python processes record themselves."""
    before = environment.get("PYTHONPATH")
    return {"PYTHONPATH": f"{_STARTUP}{os.pathsep}{before}" if before else str(_STARTUP)}


def deaf_python(command: Sequence[str]) -> str:
    """Return the reason why a Python in the command cannot be recorded from outside; empty if it can."""
    for position, word in enumerate(command):
        if PurePath(word).name.startswith("python"):
            letters = _option_letters(command[position + 1 :])
            reason = next((why for letter, why in _DEAF_OPTIONS.items() if letter in letters), "")
            if reason:
                return f"{word} with these options {reason}: ccl-bench cannot record its steps"
    return ""


def _option_letters(words: Sequence[str]) -> str:
    """Return the letters of Python's options, up to the program."""
    letters = ""
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        if not word.startswith("-") or word in {"-", "--"} or word.startswith("--"):
            break
        options = word[1:]
        last = next((place for place, letter in enumerate(options) if letter in "cmXW"), len(options))
        letters += options[:last]
        if options[last : last + 1] in {"c", "m"}:
            break
        skip = options[last:] in set(_OPTIONS_WITH_VALUE)
    return letters
