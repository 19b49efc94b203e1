"""The command `ccl-bench new`."""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.card import Card, write_card
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import say
from ccl_bench.collect.workloads import (
    definition_files,
    definition_named,
    read_definition,
    scripts_root,
    write_folder,
)
from ccl_bench.report.console import aligned, show

ABOUT = """\
With --from, the folder has run.sh, run.sbatch, train_config.toml, workload_card.yaml and pyproject.toml \
of a definition: a name that --list prints, or a file. Without it, the folder has an empty card.

Exit status: 0; 2 wrong usage, or the files already exist; 4 the definition cannot be read.
"""


_BASE = "llama3.1-8b-torchtitan-tp-perlmutter-16"

app = options.app(
    "new", ABOUT, [f"{PROGRAM} new --list", f"{PROGRAM} new my-llama --from {_BASE} --set training.steps=20"]
)


@app.default
def new(
    name: Annotated[
        str, Parameter(metavar="", help="Name of the workload and of its folder; needed without --list.")
    ] = "",
    /,
    *,
    base: Annotated[
        str | None, Parameter(name="--from", metavar="WORKLOAD", help="Definition to start from.")
    ] = None,
    output: Annotated[
        str,
        Parameter(alias="-o", metavar="DIR", help="Parent folder; the working directory by default."),
    ] = ".",
    changes: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            metavar="KEY=VALUE",
            negative="",
            help="Setting of torchtitan, such as training.steps=20; repeat it for several.",
        ),
    ] = None,
    force: Annotated[bool, Parameter(help="Overwrite existing files.")] = False,
    listing: Annotated[bool, Parameter(name="--list", help="List the definitions, by name.")] = False,
) -> int:
    """Make the folder."""
    if listing:
        rows = [(stem, read_definition(file).description) for stem, file in definition_files().items()]
        show(aligned(("WORKLOAD", "WHAT IT IS"), rows))
        return 0
    if not name:
        raise UsageError("the name of the workload is missing", fix="name it, or give --list")
    folder = Path(output) / name
    if Path(name).name != name:
        raise UsageError(f"{name!r} is not the name of a folder", fix="leave out the path; --output names it")
    if base is not None:
        definition = definition_named(base).replace(name=name, train_config=_settings(changes or []))
        written = write_folder(definition, folder, force=force)
        if "CCL_BENCH_ROOT" not in os.environ and not (folder / "../../perlmutter/common.sh").is_file():
            say(PROGRAM, f"before run.sh starts, export CCL_BENCH_ROOT={shlex.quote(str(scripts_root()))}")
    elif changes:
        raise UsageError("--set changes a definition, and none is given", fix="name one with --from")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / "workload_card.yaml"]
        write_card(Card(version=1), written[0], overwrite=force)
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


def _settings(changes: list[str]) -> dict[str, dict[str, Any]]:
    """Return the settings that were given as `section.key=value`, by section; a value is TOML, else text."""
    tables: dict[str, dict[str, Any]] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        section, dot, setting = key.partition(".")
        if not (equals and dot and setting):
            raise UsageError(
                f"{change!r} sets nothing", fix="write section.key=value, as in training.steps=20"
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        tables.setdefault(section, {})[setting] = value
    return tables
