"""Defences: takes each defence of the threat model out, and prints those that no test misses.

`defences.toml` has the change of the source that takes a defence out, and the tests that must then fail. Each
change is made to a copy of the source in an environment of its own; the checkout stays as it is. A first run
of the unchanged source shows that the tests pass, and counts their cases: these are the attacks. Words on the
command line choose rows of the threat model; a run of all rows updates the table in the manual.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.storage.files import remove_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(__file__).with_name("defences.toml")
PAGE = ROOT / "docs" / "threat-model.md"

SITE = sysconfig.get_path("purelib")
PROGRAMS = {"ccl-bench", "ccl-metrics"}

LIMIT_S = 420.0
"""Tests of slow clients give up after 300 s; what a defence prevents may last for ever."""

ENDING_S = 30.0
"""Time to stop what the tests started."""

_SECTIONS = re.compile(r"^##+ (.*)$", re.MULTILINE)
_ROWS = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_ROW = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)
_HEADS = {"attack", "risk", "not allowed"}
"""First cells of the heads of the tables whose rows are defended."""
_TEST_FILE = re.compile(r"`(tests/[\w/]+\.py)`")
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)
_TABLE = re.compile(r"^\| boundary \|.*?(?=\n\n)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Row:
    """A row of the threat model."""

    section: str
    attack: str
    files: frozenset[str]
    """Files of tests that the row names, or that the text below its table names for all rows."""


@dataclass(frozen=True)
class Defence:
    """A defence of a row, and how to take it out."""

    row: Row
    without: str
    """What a source without it lacks."""
    changes: tuple[tuple[str, str, str], ...]
    """File, text, and what takes the text's place."""
    tests: tuple[str, ...]
    """Tests each of which must fail without the defence."""


@dataclass(frozen=True)
class Run:
    """What became of tests."""

    passed: Counter[str]
    """Test → its cases that passed."""
    failed: Counter[str]
    errors: Counter[str]
    output: str
    seconds: float
    was_cut_off: bool = False


def rows(page: str) -> list[Row]:
    """Return the rows of all tables of attacks and risks in the threat model."""
    found = []
    parts = _SECTIONS.split(page)
    for section, text in zip(parts[1::2], parts[2::2], strict=True):
        beside = frozenset(_TEST_FILE.findall(_ROW.sub("", text)))
        for (head, _), *cells in map(_ROW.findall, _ROWS.findall(text)):
            if head in _HEADS:
                found += [
                    Row(section, attack, frozenset(_TEST_FILE.findall(rest)) or beside)
                    for attack, rest in cells
                ]
    return found


def read(data: dict[str, Any], known: Sequence[Row]) -> tuple[list[Defence], list[str]]:
    """Return the defences in the data, and what is wrong with them; a row is named by how it begins."""
    defences, mistakes = [], []
    for entry in data["defence"]:
        where = f"{entry['row']}: {entry['without']}"
        matching = [row for row in known if row.attack.startswith(entry["row"])]
        if len(matching) != 1:
            mistakes.append(f"{where}: {len(matching)} rows begin so")
            continue
        changes = tuple((each["file"], each["old"], each["new"]) for each in entry.get("changes", [entry]))
        for file, old, new in changes:
            path = ROOT / "src" / "ccl_bench" / file
            count = path.read_text(encoding="utf-8").count(old) if path.is_file() else 0
            if count != 1 or old == new:
                mistakes.append(f"{where}: {file} has the text {count} times")
        for test in entry["tests"]:
            file, _, name = test.partition("::")
            path = ROOT / file
            if not name or not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
                mistakes.append(f"{where}: there is no test {test}")
        defences.append(Defence(matching[0], entry["without"], changes, tuple(entry["tests"])))
    for row in known:
        used = {test.partition("::")[0] for each in defences if each.row == row for test in each.tests}
        automatic = {file for file in row.files if Path(file).name.startswith("test_")}
        if not used:
            mistakes.append(f"{row.attack}: has no defence here")
        for file in sorted((used - row.files) | (automatic - used)):
            mistakes.append(f"{row.attack}: {file} is named either here or in the row, not in both")
    return defences, mistakes


def run_tests(python: Path, tests: Iterable[str], limit_s: float) -> Run:
    """Run tests of the checkout with this interpreter, and return what became of each."""
    began = time.monotonic()
    command = [python, "-m", "pytest", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory(prefix="defences-") as folder:
        process = subprocess.Popen(
            [*command, f"--basetemp={folder}/tests", *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        # What a defence prevents may fill the memory: then the kernel ends this process, or one it started.
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000", encoding="ascii")
        try:
            output, was_cut_off = process.communicate(timeout=limit_s)[0], False
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # so that it stops the servers that it started
            try:
                output, was_cut_off = process.communicate(timeout=ENDING_S)[0], True
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, was_cut_off = process.communicate()[0], True
        remove_folder(Path(folder) / "tests")  # however deep
    return Run(*outcomes(output), output, time.monotonic() - began, was_cut_off)


def outcomes(output: str) -> tuple[Counter[str], ...]:
    """Return the cases of tests that passed, failed and ended in an error, from what pytest prints."""
    found = {kind: Counter[str]() for kind in ("PASSED", "FAILED", "ERROR")}
    for kind, test in _OUTCOME.findall(output):
        found[kind][test] += 1
    return tuple(found.values())


def changed_environment(folder: Path, changes: Iterable[tuple[str, str, str]] = ()) -> Path:
    """Make an environment like this one with a changed copy of the package, and return its interpreter.

    A path in a variable would not do: the process that recomputes runs ignores variables.
    """
    source, environment = folder / "src", folder / "environment"
    folder.chmod(0o755)  # tests of the sandbox read the source as another user
    shutil.copytree(ROOT / "src", source)
    for file, old, new in changes:
        path = source / "ccl_bench" / file
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        if path.suffix == ".py":
            compile(path.read_text(encoding="utf-8"), file, "exec")
        if path.suffix in {".c", ".h"}:
            compile_native(source / "ccl_bench" / "trace")
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/*/site-packages")
    lines = f"import sys; sys.path.insert(0, {str(source)!r})", f"import site; site.addsitedir({SITE!r})"
    (site / "defences.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    python = environment / "bin" / "python"
    for program in Path(sys.executable).parent.iterdir():
        place = python.with_name(program.name)
        if program.name in PROGRAMS:
            _, _, rest = program.read_text(encoding="utf-8").partition("\n")
            place.write_text(f"#!{python}\n{rest}", encoding="utf-8")
            place.chmod(0o755)
        elif not place.exists():
            place.symlink_to(program)
    return python


def compile_native(folder: Path) -> None:
    """Compile the native library of a copy, as `hatch_build.py` does."""
    shared, kineto = folder / "native", folder / "formats" / "kineto" / "native"
    sources = [*map(str, (*shared.glob("*.c"), *kineto.glob("*.c")))]
    options = ["-O1", "-fPIC", "-shared", "-std=c11", f"-I{shared}", "-o", str(shared / "librows.so")]
    subprocess.run(["cc", *options, *sources, "-lm"], check=True)


def judge(defence: Defence) -> tuple[list[str], Run]:
    """Return the tests that notice that a defence is missing, and the run of all its tests."""
    with tempfile.TemporaryDirectory(prefix="defences-") as folder:
        run = run_tests(changed_environment(Path(folder), defence.changes), defence.tests, LIMIT_S)
    return [test for test in defence.tests if run.was_cut_off or run.failed[test]], run


def table(judged: Sequence[tuple[Defence, list[str]]], plain: Run) -> str:
    """Return the table of the manual: attacks and defences by boundary."""
    lines = [
        "| boundary | rows | attacks tried | survived | defences taken out | noticed |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    sections: dict[str, list[tuple[Defence, list[str]]]] = {}
    for defence, noticing in judged:
        sections.setdefault(defence.row.section, []).append((defence, noticing))
    numbers = []
    for section, members in sections.items():
        tests = {test for defence, _ in members for test in defence.tests}
        survived = sum(plain.passed[test] for test in tests)
        tried = survived + sum(plain.failed[test] + plain.errors[test] for test in tests)
        noticed = sum(set(defence.tests) == {*noticing} for defence, noticing in members)
        numbers.append((len({each.row for each, _ in members}), tried, survived, len(members), noticed))
        lines.append(f"| {section} | {' | '.join(f'{each:,}' for each in numbers[-1])} |")
    totals = [sum(column) for column in zip(*numbers, strict=True)]
    return "\n".join([*lines, f"| all | {' | '.join(f'{each:,}' for each in totals)} |"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Take defences out, print what tests notice, and return 1 if one is missed by no test."""
    parser = argparse.ArgumentParser(description="take defences of the threat model out; do tests notice?")
    parser.add_argument("rows", nargs="*", help="words in rows of the threat model (default: all rows)")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: %(default)s)")
    parser.add_argument("--show", action="store_true", help="print what tests print")
    chosen = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    defences, mistakes = read(data, rows(page))
    if mistakes and not chosen.rows:
        sys.exit("\n".join(mistakes))
    defences = [
        each for each in defences if not chosen.rows or any(word in each.row.attack for word in chosen.rows)
    ]
    tests = [*dict.fromkeys(test for defence in defences for test in defence.tests)]
    if not tests:
        sys.exit("no row has these words")
    with tempfile.TemporaryDirectory(prefix="defences-") as folder:
        plain = run_tests(changed_environment(Path(folder)), tests, LIMIT_S + 30 * len(tests))
    useless = [test for test in tests if not plain.passed[test] or plain.failed[test] or plain.errors[test]]
    for test in useless:
        print(f"fails or is skipped with all defences: {test}")
    if chosen.show and useless:
        print(plain.output)
    judged, unnoticed = [], 0
    print(f"{'row':40}  {'without':50}  tests  noticed  seconds")
    with ThreadPoolExecutor(chosen.processes) as pool:
        for defence, (noticing, run) in zip(defences, pool.map(judge, defences), strict=True):
            judged.append((defence, noticing))
            missing = [test for test in defence.tests if test not in noticing or test in useless]
            unnoticed += bool(missing)
            numbers = f"{len(defence.tests):5}  {len(noticing):7}  {run.seconds:7.0f}"
            end = "  cut off" if run.was_cut_off else ""
            print(f"{defence.row.attack[:40]:40}  {defence.without[:50]:50}  {numbers}{end}", flush=True)
            for test in missing:
                print(f"    not noticed by {test}", flush=True)
            if chosen.show:
                print(run.output, flush=True)
    rows_seen = len({defence.row for defence in defences})
    noticed = len(defences) - unnoticed
    print(f"tests notice the absence of {noticed} of {len(defences)} defences, in {rows_seen} rows")
    if not chosen.rows:
        PAGE.write_text(_TABLE.sub(lambda _: table(judged, plain), page), encoding="utf-8")
    return int(unnoticed > 0 or bool(useless))


if __name__ == "__main__":
    sys.exit(main())
