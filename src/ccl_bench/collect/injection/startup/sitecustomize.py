"""Start-up file of Python processes under `ccl-bench collect`, which puts its folder on PYTHONPATH.

It runs the `sitecustomize` that it shadows, then waits until the program imports torch or JAX. It uses only
modules that Python has already loaded, so that other processes start as fast as before. The interpreter is
that of the program, and may be older than ccl-bench supports.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # the module typing would have to be loaded
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib would have to be loaded)

NEEDED_PYTHON = (3, 11)


HOOKS = {
    "torch": "ccl_bench.collect.injection.hooks",
    "jax": "ccl_bench.collect.injection.jax_hooks",
}
"""Framework -> the module that installs hooks in it."""


class WaitForFrameworks:
    """A module finder before all others: it delegates to them, and acts after the import of a framework."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a framework; None for every other module."""
        forget_this_module()
        if name not in HOOKS or name in self.loaded:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self.act_after(spec.loader)
                return spec
        return None

    def act_after(self, loader: Any) -> None:
        """Make a loader start the recorder after it has executed a framework."""
        execute = loader.exec_module

        def execute_and_act(module: Any) -> None:
            del loader.exec_module
            execute(module)
            if module.__name__ not in self.loaded:
                self.loaded.append(module.__name__)
                watch(module)

        loader.exec_module = execute_and_act


def watch(framework: Any) -> None:
    """Start to watch the program's steps; errors here never disturb the program."""
    try:
        if sys.version_info < NEEDED_PYTHON:
            raise RuntimeError("ccl-bench needs Python %d.%d" % NEEDED_PYTHON)  # noqa: UP031
        load_ccl_bench()
        hooks: Any = __import__(HOOKS[framework.__name__], fromlist=["install"])
        hooks.install(framework)
    except Exception as error:
        sys.stderr.write(
            "ccl-bench: the program is not recorded: %s: %s\n" % (type(error).__name__, error)  # noqa: UP031
        )


def load_ccl_bench() -> None:
    """Make only ccl_bench importable if the program's environment lacks it."""
    import importlib.util

    if importlib.util.find_spec("ccl_bench") is not None:
        return
    package = os.path.dirname(os.path.dirname(os.path.dirname(FOLDER)))  # noqa: PTH120
    spec: Any = importlib.util.spec_from_file_location(
        "ccl_bench",
        os.path.join(package, "__init__.py"),  # noqa: PTH118
        submodule_search_locations=[package],
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["ccl_bench"] = module
    spec.loader.exec_module(module)


def forget_this_module() -> None:
    """Allow the program to import its own `sitecustomize`."""
    module: Any = sys.modules.get("sitecustomize")
    is_ours = getattr(module, "__file__", None) == __file__
    if is_ours and not getattr(module.__spec__, "_initializing", False):
        del sys.modules["sitecustomize"]


def run_the_next() -> None:
    """Execute the `sitecustomize` that Python would have run, under its own name."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


sys.path[:] = [place for place in sys.path if os.path.abspath(place) != FOLDER]  # noqa: PTH100
if os.environ.get("CCL_BENCH_INJECT") != "0" and os.environ.get("CCL_BENCH_OUTPUT"):
    sys.meta_path.insert(0, WaitForFrameworks())
run_the_next()
