"""The command `ccl-bench new`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.cli import options

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.collect.workloads import Definition

ABOUT = """Make the folder of a workload: its scripts, its configuration and its card.

With --from, the folder has run.sh, run.sbatch, train_config.toml, workload_card.yaml and pyproject.toml \
of a definition: the name of one in workloads/, or a file. Without it, the folder has an empty card.

Exit status: 0; 2 wrong usage, or the files already exist; 4 the definition cannot be read.
"""

DEFINITIONS = "workloads"
"""Folder of a checkout that holds the standard definitions."""


def app(program: str) -> App:
    """Return the command."""
    base = "llama3.1-8b-torchtitan-tp-perlmutter-16"
    command = options.app("new", ABOUT, [f"{program} new my-llama --from {base} --set training.steps=20"])

    @command.default
    def new(
        name: Annotated[str, Parameter(metavar="", help="Name of the workload and of its folder.")],
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
    ) -> int:
        folder = Path(output) / name
        if not name or Path(name).name != name:
            raise UsageError(
                f"{name!r} is not the name of a folder", fix="leave out the path; --output names it"
            )
        if base is None:
            if changes:
                raise UsageError("--set changes a definition, and none is given", fix="name one with --from")
            written = [_empty_card(folder, force=force)]
        else:
            from ccl_bench.collect.workloads import write_folder

            written = write_folder(_changed(_definition(base), name, changes or []), folder, force=force)
        sys.stdout.write("".join(f"{path}\n" for path in written))
        return 0

    return command


def _empty_card(folder: Path, *, force: bool) -> Path:
    from ccl_bench.card import Card, write_card

    folder.mkdir(parents=True, exist_ok=True)
    write_card(Card(version=1), folder / "workload_card.yaml", overwrite=force)
    return folder / "workload_card.yaml"


def _definition(name: str) -> Definition:
    """Return a definition by its file, or by its name in a checkout around here or around this package."""
    from ccl_bench.collect.workloads import read_definition

    if Path(name).suffix == ".toml":
        return read_definition(Path(name))
    places = [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[3]]
    folder = next((p / DEFINITIONS for p in places if any((p / DEFINITIONS).glob("*.toml"))), None)
    if folder is None:
        raise UsageError(
            f"there is no folder {DEFINITIONS} with definitions here",
            fix="call it in a checkout of ccl-bench, or name a .toml file",
        )
    names = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in names:
        hint = did_you_mean(name, names) or f"known: {', '.join(names)}"
        raise UsageError(f"there is no workload {name!r}", fix=hint)
    return read_definition(folder / f"{name}.toml")


def _changed(definition: Definition, name: str, changes: list[str]) -> Definition:
    """Return the definition under its new name and with the settings that were given."""
    tables: dict[str, dict[str, bool | int | float | str | list[str]]] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        section, dot, setting = key.partition(".")
        if not (equals and dot and setting):
            raise UsageError(
                f"{change!r} sets nothing", fix="write section.key=value, as in training.steps=20"
            )
        tables.setdefault(section, {})[setting] = _value(text)
    return definition.replace(name=name, train_config=tables)


def _value(text: str) -> bool | int | float | str | list[str]:
    """Return the value of a text in TOML, else the text itself."""
    try:
        value: bool | int | float | str | list[str] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value
