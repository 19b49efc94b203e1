"""The files of a workload's folder, and writing them."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import TYPE_CHECKING

from ccl_bench.collect.workloads.card import workload_card
from ccl_bench.collect.workloads.definition import torchtitan_version
from ccl_bench.collect.workloads.toml_text import toml_text, toml_value
from ccl_bench.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import jinja2

    from ccl_bench.collect.workloads.definition import Definition

SCRIPT = "run.sh"


def folder_files(definition: Definition) -> dict[str, str]:
    """Return name -> content of every file in the folder."""
    header = f"# The settings of torchtitan {torchtitan_version()} for this workload.\n\n"
    return {
        SCRIPT: _filled("run.sh", definition),
        "run.sbatch": _filled("run.sbatch", definition),
        "train_config.toml": header + toml_text(definition.config),
        "workload_card.yaml": workload_card(definition),
        "pyproject.toml": _filled("pyproject.toml", definition),
    }


def write_folder(definition: Definition, folder: Path, *, force: bool = False) -> list[Path]:
    """Write the files, and return them; one that differs is overwritten only by `force`."""
    files = {folder / name: text for name, text in folder_files(definition).items()}
    taken = [path.name for path, text in files.items() if path.exists() and path.read_text("utf-8") != text]
    if taken and not force:
        message = f"holds other files of these names: {', '.join(taken)}"
        raise UsageError(message, where=str(folder), fix="choose another folder, or give --force")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    (folder / SCRIPT).chmod(0o755)
    return list(files)


def _filled(name: str, definition: Definition) -> str:
    values = {
        "definition": definition,
        "machine": definition.on,
        "distribution": re.sub(r"[^a-z0-9.]+", "-", definition.name.lower()).strip("-."),
        "torchtitan": torchtitan_version(),
        "time": f"{definition.minutes // 60:02}:{definition.minutes % 60:02}:00",
    }
    return _templates().get_template(f"{name}.jinja").render(values)


@cache
def _templates() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ccl_bench.collect.workloads"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # noqa: S701 (shell and TOML, no page)
    )
    environment.filters |= {"quoted": shlex.quote, "toml": toml_value}
    return environment
