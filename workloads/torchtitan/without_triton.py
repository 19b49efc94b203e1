"""Importing this lets torchtitan be imported where Triton, a gigabyte of compilers, is not installed.

torchtitan 0.2.2 imports Triton for one kernel, which places the tokens of experts on a GPU. The module that
holds this kernel is imported here with a name in Triton's place; torch itself still sees that there is none.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

KERNELS = "torchtitan.models.moe.kernels"


def import_kernels() -> None:
    """Import the module of the kernel, which no processor can run, and nothing else of torchtitan."""
    language = ModuleType("triton.language")
    language.constexpr = None
    triton = ModuleType("triton")
    triton.language, triton.jit = language, lambda kernel: kernel
    folder = Path(importlib.util.find_spec("torchtitan").origin).parent
    path = folder.joinpath(*KERNELS.split(".")[1:]).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(KERNELS, path)
    kernels = sys.modules[KERNELS] = importlib.util.module_from_spec(spec)
    in_place = {"triton": triton, "triton.language": language}
    sys.modules.update(in_place)
    try:
        spec.loader.exec_module(kernels)
    finally:
        for name in in_place:
            del sys.modules[name]


if importlib.util.find_spec("triton") is None:
    import_kernels()
