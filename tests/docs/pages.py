"""The pages of the manual, and the commands and outputs that they show.

A fenced block marked `console` holds commands after `$ ` and what they print, and is compared with
what they really print. `python tests/docs/pages.py` (`make outputs`) writes the real output into the pages.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmark", "docs", "examples", "perlmutter", "trace_collection", "trace_gen", "workloads")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).glob("*.md"))], key=str
)

_FENCE = re.compile(r"^```(?P<language>[\w-]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S.*\n)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: str
    language: str
    body: str
    line: int

    def __str__(self) -> str:
        """Return the place, as test names show it."""
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    return [
        Block(name, found["language"], found["body"], text[: found.start()].count("\n") + 1)
        for found in _FENCE.finditer(text)
    ]


def sessions(body: str) -> list[tuple[str, str]]:
    """Return the commands of a `console` block, each with the output shown for it."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        found.append((command, output))
    return found


def commands(path: Path) -> list[str]:
    """Return the command lines of this package that a page shows, in blocks and in running text."""
    text = path.read_text(encoding="utf-8")
    lines = [line for block in blocks(path) for line in block.body.splitlines()]
    lines += [line for found in _INDENTED.findall(text) for line in found.splitlines()]
    lines += _INLINE.findall(_FENCE.sub("", text))
    plain = (re.sub(r"^\s*\$?\s*(?:\.venv/bin/)?", "", line) for line in lines)
    return [line for line in plain if re.match(r"ccl-(?:bench|metrics)(?:\s|$)(?!is |needs )", line)]


def inline_code(path: Path) -> list[str]:
    """Return the code in running text."""
    return _INLINE.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))


def is_of_this_package(line: str) -> bool:
    """Whether a line is a command of this package alone, which needs no shell."""
    if not re.match(r"ccl-(?:bench|metrics) ", line) or re.search(r"[$*]", line):
        return False
    return not any(
        set(word) <= set("();<>|&") for word in shlex.shlex(line, posix=True, punctuation_chars=True)
    )


def output_of(command: str, given: str = "", folder: Path = ROOT) -> str:
    """Return what a command line prints, remarks included, in a pipe 100 columns wide."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"},
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return without_trailing_space(done.stdout)


def without_trailing_space(text: str) -> str:
    """Return a text as pages show it."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def refreshed(text: str) -> str:
    """Return a page with the real output in its `console` blocks."""

    def again(found: re.Match[str]) -> str:
        if found["language"] != "console":
            return found[0]
        shown = "".join(f"$ {command}\n{output_of(command)}" for command, _ in sessions(found["body"]))
        return f"```console\n{shown}```"

    return _FENCE.sub(again, text)


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = refreshed(before)
        if "Traceback (most recent call last)" in after:
            sys.exit(f"{page.relative_to(ROOT)}: a command failed; nothing is written")
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
