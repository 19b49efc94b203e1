"""Every command, option, metric and output in README and manual exists and is what it is said to be."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import ROOT, invoke, piped
from pages import (
    PAGES,
    Block,
    blocks,
    commands,
    inline_code,
    is_of_this_package,
    output_of,
    sessions,
    without_trailing_space,
)

from ccl_bench import metrics
from ccl_bench.cli.commands import FAMILIES

if TYPE_CHECKING:
    import subprocess

SHOWN = [block for page in PAGES for block in blocks(page) if block.language == "console"]
COMMANDS = sorted({(page.name, line) for page in PAGES for line in commands(page)})
COMPARED = {command for block in SHOWN for command, _ in sessions(block.body)}
IN_CONTRIBUTING = {"kernel_count", "kernels_in_steps", "kernel_list", "slow_optimizer", "test_kernel_count"}
"""What CONTRIBUTING adds; a test does it in a copy of the repository."""
PLACEHOLDER = re.compile(r"\b(?:RUN|NAME|FILE|N|PATH|DIR|my-run)\b")

# Options of every program, of the scripts that record the bundled runs, and of programs that are recorded.
FOREIGN_OPTIONS = {"--backend", "--cuda-graph-trace", "--help", "--version"} | {
    "--gpu-metrics-devices",  # nsys
    "--growth",  # benchmarks/leaderboard.py
    "--board",  # and so is this
    "--nic-metrics",  # nsys
    "--output-format",  # rocprofv3
    *("--hip-trace", "--kernel-trace", "--rccl-trace"),  # rocprofv3
    "--save-detailed",  # vLLM
    "--signal",  # sbatch
    "--tools",  # tools/main.py
    "--use-pytorch-profiler",  # Megatron-LM
}


@cache
def _help_of(words: tuple[str, ...]) -> str:
    found = invoke([*words, "--help"])
    assert found.returncode == 0, found.stderr
    return found.stdout


def _program(line: str) -> tuple[str, ...]:
    """Return the program of a command line, with its command where it has one, and the one below it."""
    words = line.split()
    named = words[0] == "ccl-bench" and len(words) > 1 and re.fullmatch(r"[a-z]+(-[a-z]+)*", words[1])
    return tuple(words[: (3 if words[1] in FAMILIES else 2) if named else 1])


def test_there_are_commands_and_outputs_to_compare() -> None:
    assert len(SHOWN) >= 6
    assert len(COMMANDS) >= 15


@cache
def _ended(line: str) -> subprocess.CompletedProcess[str]:
    """Return what a command of this package came to, called once for all pages."""
    return invoke(line)


ELSEWHERE = "cd $(mktemp -d) && "


@cache
def _printed(command: str) -> str:
    """Return what a command line prints; a command of this package is called in this process."""
    if command.startswith(ELSEWHERE):
        lines = command.removeprefix(ELSEWHERE).replace("$OLDPWD", str(ROOT)).split(" && ")
        with tempfile.TemporaryDirectory() as folder:
            return "".join(_printed_in(Path(folder), line) for line in lines)
    program, _, filters = command.partition(" | ")
    if not is_of_this_package(program):
        return output_of(command)
    if not filters:
        return _printed_in(ROOT, program)
    done = _ended(program)
    return without_trailing_space(done.stderr) + output_of(filters, done.stdout)


def _printed_in(folder: Path, command: str) -> str:
    if is_of_this_package(command):
        return without_trailing_space(piped(command, folder))
    return output_of(command, folder=folder)


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_an_output_in_the_manual_is_what_the_command_prints(block: Block) -> None:
    for command, output in sessions(block.body):
        assert _printed(command) == output, "run: make outputs"


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_in_the_manual_exists_with_its_options(page: str, line: str) -> None:
    command = line.split("|")[0].split(" -- ")[0]  # what follows is of another program
    shown = _help_of(_program(command))
    options = re.findall(r"(?<=\s)--[a-z][a-z-]*", command)
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", shown)] == []


@cache
def _known() -> frozenset[str]:
    """Return every name of a metric, looking for plug-ins once."""
    registry = metrics.load()
    return frozenset([*registry.names(), *registry.aliases()])


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_metric_named_in_a_command_exists(page: str, line: str) -> None:
    words = line.split()
    if words[:2] in (["ccl-bench", "tables"], ["ccl-bench", "diagnose"]):  # they explain other things
        return
    named = [value for option, value in pairwise(words) if option in {"--metric", "-m", "--explain"}]
    known = _known()
    real = [name for name in named if not PLACEHOLDER.fullmatch(name)]
    added = IN_CONTRIBUTING if page == "CONTRIBUTING.md" else set()
    assert [name for name in real if name not in known and name not in added] == []


def _is_of_a_bundled_run(line: str) -> bool:
    """Whether a command reads a run of the checkout and writes no file, which stories do elsewhere."""
    return "examples/runs/" in line and " -o " not in line


@pytest.mark.parametrize(
    ("page", "line"),
    [(p, line) for p, line in COMMANDS if _is_of_a_bundled_run(line) and line not in COMPARED],
    ids=str,
)
def test_a_command_on_the_bundled_runs_works(page: str, line: str) -> None:
    found = _ended(line.split("|")[0].strip())
    assert found.returncode in {0, 3}, found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_option_named_in_the_text_exists(page: object) -> None:
    everything = "".join(_help_of(words) for words in {_program(line.split("|")[0]) for _, line in COMMANDS})
    named = {re.split(r"[ =]", code)[0] for code in inline_code(page) if code.startswith("--")}
    options = {option for option in named if "." not in option} - FOREIGN_OPTIONS  # torchtitan's have dots
    assert {option for option in options if option not in everything} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_make_task_named_in_the_text_exists(page: object) -> None:
    lines = [line for block in blocks(page) for line in block.body.splitlines()] + inline_code(page)
    named = {line.split()[1] for line in lines if re.match(r"make [a-z][a-z-]*(?:\s|$)", line)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {task for task in named if not re.search(rf"^{task}:", makefile, flags=re.MULTILINE)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_of_the_repository_named_in_the_text_exists(page: object) -> None:
    folders = ("src/", "docs/", "tests/", "examples/", "workloads/", "tools/", "benchmarks/")
    named = {
        code for code in inline_code(page) if code.startswith(folders) and re.fullmatch(r"[\w./-]+", code)
    }
    invented = {name for name in named if Path(name).stem in IN_CONTRIBUTING}
    assert {name for name in named - invented if not (ROOT / name).exists()} == set()


def test_every_task_of_make_says_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    tasks = set(re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)[1].split())
    assert tasks == set(re.findall(r"^([a-z-]+):.*## \S", makefile, flags=re.MULTILINE))


def test_every_command_ends_its_help_with_an_example() -> None:
    names = re.findall(r"^  ([a-z-]+)  ", _help_of(("ccl-bench",)), flags=re.MULTILINE)
    silent = [name for name in names if not re.search(r"Examples?:\n\s+\S", _help_of(("ccl-bench", name)))]
    assert names
    assert silent == []
