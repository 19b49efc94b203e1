"""Python runs this file when it starts, if `ccl-bench collect` has put its folder on PYTHONPATH.

It starts the `sitecustomize` that it stands in front of, then waits until the program imports torch or
JAX. It needs nothing but what Python has loaded by then, so that a process without them starts as fast as
before. The interpreter is that of the program, and may be older than ccl-bench supports.
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
    """First finder of modules: it lets the others find them, and acts when a framework has been imported."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return how to load a framework; nothing for every other module."""
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
        """Let a loader start the recorder after it has executed a framework."""
        execute = loader.exec_module

        def execute_and_act(module: Any) -> None:
            del loader.exec_module
            execute(module)
            if module.__name__ not in self.loaded:
                self.loaded.append(module.__name__)
                watch(module)

        loader.exec_module = execute_and_act


def watch(framework: Any) -> None:
    """Start to watch the program's steps; a program is never disturbed by what goes wrong here."""
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
    """Make ccl_bench importable where the program's environment lacks it, and nothing else of ours."""
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
    """Let the program import a `sitecustomize` of its own, as it could without this one."""
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
