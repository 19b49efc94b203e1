"""Write the man pages of the commands, from the help of each.

    python docs/man.py [FOLDER]

writes `ccl-bench.1` and `ccl-metrics.1` into `docs/man`, or into FOLDER.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from command_help import PROGRAMS, help_of, subcommands

from ccl_bench import __version__
from ccl_bench.cli.commands import GROUPS

FOLDER = Path(__file__).resolve().parent / "man"
MANUAL = "https://github.com/ccl-bench/ccl-bench/tree/main/docs"

_ONE_LINE = 10_000
"""Columns of a help whose lines are whole."""
_TITLE = re.compile(rf"({'|'.join(('Usage', 'Arguments', 'Options', 'Commands', 'Example', *GROUPS))}):(.*)")
_ROW = re.compile(r"  (?P<name>\S.*?)(?:  +(?P<help>.*))?")


def man_page(program: str) -> str:
    """Return the man page of a program and its commands."""
    parts = _parts(program)
    about, *details = parts["About"]
    head = f'.TH {_escaped(program.upper())} 1 "" "{_escaped(f"{program} {__version__}")}" "User Commands"'
    name = f"{_escaped(program)} \\- {_escaped(about.removesuffix('.'))}"
    lines = [head, ".SH NAME", name, ".SH SYNOPSIS", *_usage(parts), ".SH DESCRIPTION", *_paragraphs(details)]
    for title in ("Arguments", "Options"):
        if title in parts:
            lines += [f".SH {title.upper()}", *_rows(parts[title])]
    commands = subcommands(program)
    if commands:
        lines += [".SH COMMANDS", *(line for command in commands for line in _command(command))]
    others = [f".BR {_escaped(other)} (1)," for other in PROGRAMS if other != program]
    lines += [".SH EXAMPLES", *_examples(parts), ".SH SEE ALSO", *others, _escaped(MANUAL)]
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    """Write the man page of each program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        (folder / f"{program}.1").write_text(man_page(program), encoding="utf-8")


def _command(command: str) -> list[str]:
    """Return the lines about one command: its help, with options after the text."""
    parts = _parts(command)
    lines = [f".SS {_escaped(command)}", *_usage(parts), *_paragraphs(parts["About"])]
    for title in ("Arguments", "Options"):
        lines += _rows(parts.get(title, []))
    return [*lines, ".PP", *_examples(parts)]


def _parts(command: str) -> dict[str, list[str]]:
    """Return the help of a command by the titles of its parts; the text before them is `About`."""
    parts: dict[str, list[str]] = {"About": []}
    title = "About"
    for line in help_of(command, _ONE_LINE).splitlines():
        if started := _TITLE.fullmatch(line):
            title, rest = started.groups()
            parts[title] = [rest.strip()] if rest else []
        elif line:
            parts[title].append(line)
    return parts


def _usage(parts: dict[str, list[str]]) -> list[str]:
    return [".PP", *(f".B {_escaped(line)}" for line in parts["Usage"])]


def _paragraphs(texts: list[str]) -> list[str]:
    return [line for text in texts for line in (".PP", _escaped(text))]


def _rows(lines: list[str]) -> list[str]:
    """Return a list of names, each with its meaning."""
    rows = (_ROW.fullmatch(line) for line in lines)
    return [
        line
        for row in rows
        if row
        for line in (".TP", f".B {_escaped(row['name'])}", _escaped(row["help"] or ""))
    ]


def _examples(parts: dict[str, list[str]]) -> list[str]:
    return [".EX", *(_escaped(line) for line in parts["Example"]), ".EE"]


def _escaped(text: str) -> str:
    """Return text for roff, with its commands escaped."""
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq").replace("'", r"\(aq")
    return f"\\&{plain}" if plain.startswith(".") else plain


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: python docs/man.py [FOLDER]")
    write(Path(sys.argv[1]) if len(sys.argv) == 2 else FOLDER)
