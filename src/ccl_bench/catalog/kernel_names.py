"""The function's own name inside the name a profiler gives a GPU kernel."""

from __future__ import annotations

_UNNAMED = ("(anonymous namespace)::", "<unnamed>::")


def stem(kernel_name: str) -> str:
    """Return the qualified function name without return type, template arguments and parameters.

    `void at::native::<unnamed>::reduce_kernel<(int)512>(T1)` gives `at::native::reduce_kernel`. A mangled
    name stays whole.
    """
    name = kernel_name
    for unnamed in _UNNAMED:
        name = name.replace(unnamed, "")
    name = name.removeprefix("void ")
    ends = [position for position in (name.find("<"), name.find("(")) if position > 0]
    return name[: min(ends)] if ends else name
