"""Make the files that the package has and the repository lacks, and add files of the checkout to the package.

Made are the native readers and the scripts of charts. Added is what `ccl-bench new --from` reads, and what
the run.sh that it writes sources.

The readers are compiled with the system's C compiler or, where there is none that works, with the one in the
wheel `ziglang`, which is asked for only then. Where neither works, and on Windows, the package is built
without the library, and ccl-bench reads traces without it, more slowly. CCL_BENCH_NATIVE=0 leaves it out.

The scripts are Vega, Vega-Lite and vega-embed, which vl-convert-python bundles into one. Without it the build
fails: every report needs them. A wheel of ccl-bench has them for every machine.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHARED = Path("src/ccl_bench/trace/native")
NATIVE = (
    SHARED,
    Path("src/ccl_bench/trace/formats/kineto/native"),
    Path("src/ccl_bench/whatif/native"),
)
"""Folders whose C makes up the library."""
LIBRARY = SHARED / "librows.so"
CHARTS = Path("src/ccl_bench/report/render/assets/vega.js")
CHECKOUT = (
    "workloads/*.toml",
    "workloads/torchtitan/*.*",
    "clusters/*.*",
    "perlmutter/common.sh",
    "perlmutter/nsys*.sh",
)
"""Files of a checkout that a wheel has below `ccl_bench/checkout`."""
FLAGS = ("-O3", "-fPIC", "-shared", "-std=c11")

_ZIG = ("ziglang>=0.13",)
_ZIG_MACHINES = {"Linux": {"x86_64", "aarch64"}, "Darwin": {"x86_64", "arm64"}}
"""Where there is a wheel of ziglang. Elsewhere asking for it would make the installation fail."""


def system_compilers() -> list[list[str]]:
    """Return the commands of the C compilers that this machine has."""
    chosen = shlex.split(os.environ.get("CC", ""))
    found = [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]
    return [chosen, *found] if chosen else found


def zig() -> list[list[str]]:
    """Return the command of ziglang's C compiler, for any processor of the kind, if it is installed."""
    if importlib.util.find_spec("ziglang") is None:
        return []
    return [[sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]]


def compiled(root: Path, target: Path, compilers: list[list[str]]) -> bool:
    """Compile the library to `target` with the first compiler that can; say whether one could."""
    sources = [str(source) for folder in NATIVE for source in sorted((root / folder).glob("*.c"))]
    made = target.with_name(f".{target.name}.{os.getpid()}")
    for compiler in compilers:
        command = [*compiler, *FLAGS, f"-I{root / SHARED}", "-o", str(made), *sources, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603  a compiler
        except OSError:
            continue
        if done.returncode == 0 and made.exists():
            made.replace(target)
            return True
    made.unlink(missing_ok=True)
    return False


def bundle_charts(target: Path) -> None:
    """Write the scripts of charts to `target`, as one that HTML can hold; ImportError without vl-convert."""
    try:
        import vl_convert
    except ImportError as error:
        message = (
            "vl-convert-python, which bundles the scripts of charts, cannot be imported\n"
            "  fix: install a wheel of ccl-bench, which has them, or install what pyproject.toml builds with"
        )
        raise ImportError(message) from error
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    made = target.with_name(f".{target.name}.{os.getpid()}")
    made.write_text(script, encoding="utf-8")
    made.replace(target)


def _is_newer(file: Path, than: Path) -> bool:
    """Whether a file was made after another one: pyproject.toml pins what the scripts are bundled from."""
    return file.exists() and file.stat().st_mtime > than.stat().st_mtime


def _is_native() -> bool:
    """Whether to compile the readers, which use calls of POSIX."""
    return os.environ.get("CCL_BENCH_NATIVE") != "0" and os.name == "posix"


class GeneratedFiles(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling calls for a wheel, also for that of an editable installation.

    The latter has no files: it finds them in the checkout, where they are made.
    """

    def dependencies(self) -> list[str]:
        """Ask for ziglang where there is no compiler that works."""
        if not _is_native() or platform.machine() not in _ZIG_MACHINES.get(platform.system(), ()):
            return []
        with tempfile.TemporaryDirectory() as folder:
            works = compiled(Path(self.root), Path(folder, LIBRARY.name), system_compilers())
        return [] if works else list(_ZIG)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  its interface
        """Make the files, and name all as parts of the wheel."""
        root = Path(self.root)
        if not _is_newer(root / CHARTS, root / "pyproject.toml"):
            bundle_charts(root / CHARTS)
        build_data["artifacts"].append(f"/{CHARTS}")
        files = [path for pattern in CHECKOUT for path in sorted(root.glob(pattern))]
        places = {str(path): f"ccl_bench/checkout/{path.relative_to(root).as_posix()}" for path in files}
        build_data["force_include"].update(places)
        if not _is_native() or not compiled(root, root / LIBRARY, [*system_compilers(), *zig()]):
            (root / LIBRARY).unlink(missing_ok=True)
            self.app.display_warning("without the native reader: ccl-bench will read traces more slowly")
            return
        build_data["artifacts"].append(f"/{LIBRARY}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
