"""Completion as shells do it: each is started once on a terminal, and runs what it completed."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from ccl_bench.cli import completion
from ccl_bench.cli.bench import main

ROOT = Path(__file__).parents[2]

TYPED = {
    "ccl-bench rep": "report",
    "ccl-bench board tok": "board token",
    "ccl-bench baseline sho": "baseline show",
    "ccl-bench report --workload-ca": "report --workload-card",
    "ccl-bench report examples/runs/meg": "report examples/runs/megatron-tp8-a100",
    "ccl-bench report -f mark": "report -f markdown",
    "ccl-bench report examples --workload-card workload_card_t": (
        "report examples --workload-card workload_card_template.yaml"
    ),
    "ccl-bench compare examples examples/runs/meg": "compare examples examples/runs/megatron-tp8-a100",
    "ccl-bench board site examples/runs/meg": "board site examples/runs/megatron-tp8-a100",
    "ccl-metrics examples/runs/meg": "examples/runs/megatron-tp8-a100",
    "ccl-metrics examples --metric coll_call_n": "examples --metric coll_call_num",
    "ccl-metrics examples --list-m": "examples --list-metrics",
}
"""What is typed before the tabulator → the words that the program gets, without a last slash."""

STARTED = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "--interactive"],
}


@pytest.mark.parametrize("shell", get_args(completion.Shell))
def test_a_shell_completes_commands_options_metrics_and_paths(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed: make services")
    log = tmp_path / "log"
    _write_programs(tmp_path / "bin", log)
    script = tmp_path / "script"
    assert main(["completion", shell]) == 0
    started = f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump\n" if shell == "zsh" else ""
    script.write_text(started + capsys.readouterr().out, encoding="utf-8")
    lines = [f"source {script}; ccl-bench ready", *(f"{typed}\t" for typed in TYPED)]
    screen = _typed(STARTED[shell], lines, tmp_path, log)
    assert dict(zip(TYPED, log.read_text().splitlines()[1:], strict=True)) == TYPED, screen


def _write_programs(folder: Path, log: Path) -> None:
    """Write programs that note their words, and complete what the script asks the real ones."""
    folder.mkdir()
    real = shlex.join(
        [sys.executable, "-c", "from ccl_bench.cli.metrics import main; raise SystemExit(main())"]
    )
    for name in ("ccl-bench", "ccl-metrics"):
        program = folder / name
        program.write_text(
            f'#!/bin/bash\n[ "$1" != __complete ] || exec {real} "$@"\necho "${{*%/}}" >> {log}\n'
        )
        program.chmod(0o755)


def _typed(command: list[str], lines: list[str], home: Path, log: Path) -> str:
    """Type lines into a shell, each when the one before has run, and return what was on the screen."""
    environment = os.environ | {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execvpe(command[0], command, environment | {"TERM": "dumb"})
    screen, sent = b"", 0
    log.touch()
    deadline = time.monotonic() + 60
    try:
        while (run := len(log.read_text().splitlines())) < len(lines) and time.monotonic() < deadline:
            if run == sent:
                os.write(terminal, lines[sent].encode() + b"\r")
                sent += 1
            if select.select([terminal], [], [], 0.05)[0]:
                screen += os.read(terminal, 65536)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
    return screen.decode(errors="replace")
