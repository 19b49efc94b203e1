"""Every command of the original tools' instructions gives what they promise; each statement is a row.

The tables are the TOML files beside this module. That of the Perlmutter scripts is run by tests/system/slurm.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import invoke

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
TABLES = ("tools", "metrics_guide", "nsys_report", "overview")

_SHELL = re.compile(r"[&|<>$*;\n]")
_SCRIPTS = (["python", "main.py"], ["python", "tools/main.py"])
_COMMANDS = ("ccl-metrics", "ccl-bench")


STATEMENTS = {
    f"{table} {number}: {row['states']}": row
    for table in TABLES
    for number, row in enumerate(tomllib.loads((HERE / f"{table}.toml").read_text())["statement"])
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_the_statement_holds(
    statement: dict[str, Any], checkout: Path, places: Mapping[str, Path | None]
) -> None:
    command = statement.get("tried_as", statement["command"])
    for name in re.findall(r"\{(\w+)\}", command):
        if places[name] is None:
            pytest.skip("set CCL_BENCH_CORPUS to the folder of real traces; nsys comes with 'make services'")
        command = command.replace(f"{{{name}}}", str(places[name]))
    for name, content in statement.get("adds", {}).items():
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text(content)
    expected = statement["expected"]

    done = _ran(command, checkout, alone="adds" in statement)

    shown = done.stdout + done.stderr
    assert done.returncode == expected.get("status", 0), shown
    assert "Traceback" not in shown
    unseen = [p for p in expected.get("output", ()) if not re.search(p, shown, flags=re.MULTILINE)]
    assert unseen == [], shown
    assert [pattern for pattern in expected.get("files", ()) if not [*checkout.glob(pattern)]] == []
    for tool, keys in expected.get("keys", {}).items():
        found = json.loads(done.stdout)[tool]
        assert [key for key in keys if not _has(found, key)] == []
    assert expected.keys() <= {"status", "output", "files", "keys"}
    assert {"output", "files", "keys"} & expected.keys()


def _has(found: dict[str, Any], key: str) -> bool:
    """Whether a dict has one of the keys that are separated by strokes, with something in it."""
    return any(found.get(each) not in (None, "", {}, []) for each in key.split("|"))


def _ran(command: str, folder: Path, *, alone: bool) -> subprocess.CompletedProcess[str]:
    """Run a command as it is written; in this process where that is the same."""
    words = shlex.split(command)
    is_module = words[:3] == ["python", "-m", "tools.main"]
    if not alone and not _SHELL.search(command):
        if is_module or words[:2] in _SCRIPTS:
            return invoke(["tools/main.py", *words[3 if is_module else 2 :]], folder=folder)
        if words[0] in _COMMANDS:
            return invoke(words, folder=folder)
    if words[:2] == ["python", "-c"] and len(words) == 3:
        return _executed(words[2])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHON": sys.executable, "COLUMNS": "200", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def _executed(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code as a module of its own in this process."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "<instructions>", "exec"), {"__name__": "__main__"})
    return subprocess.CompletedProcess([code], 0, shown.getvalue(), "")


def test_no_statement_is_in_two_rows_and_each_names_a_command_and_what_is_seen() -> None:
    assert len({row["states"] for row in STATEMENTS.values()}) == len(STATEMENTS)
    known = {"states", "command", "tried_as", "adds", "expected", "differs"}
    needed = {"states", "command", "expected"}
    assert [row for row in STATEMENTS.values() if not needed <= row.keys() <= known] == []
