"""Mutants: samples small mistakes in the arithmetic, and prints those that no quick test notices.

A mutant is one module with one operator, constant or call changed. No file of the checkout changes: in a fork
of this process, which has imported the package, the changed functions get their new code, and the tests run.
A first run of the unchanged code finds which tests reach which mutant, and how long they take. What functions
computed when their module was imported stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import functools
import gc
import importlib
import itertools
import json
import os
import pkgutil
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from mutant_forks import Fork, run_forks
from mutant_sites import parse, sites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]

TESTS = {
    "analysis": (
        *("analysis", "metrics", "evaluate", "chakra", "report", "timeline", "whatif", "diagnosis"),
        *("trace/nsys", "trace/xplane"),
    ),
    "metrics": ("metrics", "analysis", "evaluate", "trace/nsys", "trace/xplane"),
    "comparison": ("comparison",),
    "card": ("card", "run"),
    "report": ("report", "comparison", "diagnosis", "whatif", "analysis/recorder", "cli"),
}
"""Packages whose arithmetic is changed, and the folders of tests that guard each."""

SLOW_S = 2.0
"""Tests that compute for longer are left out: a mutant must be noticed quickly."""

CUT_OFF_S = 15.0
"""Tests that take longer, computing or waiting, are cut off."""

LEFT_OUT = ("*_recorded.py", "*_browser.py", "*_corpus.py")
"""Files of tests that start other programs or read large traces."""

PATIENCE_S = 10.0
"""Tests of one mutant take this long at most, by their time on the unchanged code; the quickest go first."""


Functions = dict[tuple[str, str, int], list[FunctionType]]
"""Functions of the package by file, qualified name and line; several for one that is made again."""


@dataclass(frozen=True)
class Project:
    """Where sources and tests lie."""

    root: Path
    package: str
    tests: dict[str, tuple[str, ...]]

    @property
    def source(self) -> Path:
        """The folder of the package."""
        return self.root / "src" / self.package


@dataclass
class Mutant:
    """A site of one module, and what became of it."""

    module: str
    number: int
    """Which of the module's sites."""
    line: int
    change: str
    is_constant: bool = False
    """Whether it lies outside functions."""
    outcome: str = "unreached"
    noticed_by: str = ""
    tests: list[str] = field(default_factory=list)
    """Tests that reach it, and then the others of their files."""
    expected_s: float = 0.0

    @property
    def package(self) -> str:
        """The package whose tests guard it."""
        return self.module.partition("/")[0]


def sample(project: Project, packages: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return mutants drawn at random, as many of each package."""
    found = []
    for place, package in enumerate(packages):
        every = [
            Mutant(
                str(path.relative_to(project.source)),
                number,
                site.line,
                site.change,
                is_constant=isinstance(site.scope, str),
            )
            for path in sorted((project.source / package).rglob("*.py"))
            for number, site in enumerate(sites(parse(path)))
        ]
        share = count // len(packages) + (place < count % len(packages))
        found += random.Random(f"{seed} {package}").sample(every, min(share, len(every)))
    return found


def watched(project: Project, mutants: Sequence[Mutant]) -> dict[str, ast.Module]:
    """Return modules, by path, whose statements note the mutants that may show in them.

    A changed constant may show in every function that names it.
    """
    trees = {str(path): parse(path) for path in sorted(project.source.rglob("*.py"))}
    every = {path: list(sites(tree)) for path, tree in trees.items()}
    constants: dict[str, list[int]] = {}
    notes: list[tuple[str, ast.stmt, list[int]]] = []
    for index, mutant in enumerate(mutants):
        path = str(project.source / mutant.module)
        scope = every[path][mutant.number].scope
        if isinstance(scope, str):
            constants.setdefault(scope, []).append(index)
        else:
            notes.append((path, scope, [index]))
    for path, tree in trees.items() if constants else ():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            used = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(function)}
            shown = [index for name in used for index in constants.get(str(name), ())]
            has_more = ast.get_docstring(function) and len(function.body) > 1
            notes.append((path, function.body[1 if has_more else 0], shown))
    changed = {path for path, _, indices in notes if indices}
    blocks = {id(each): block for path in changed for block in _blocks(trees[path]) for each in block}
    for _, statement, indices in notes:
        if indices:
            block = blocks[id(statement)]
            place = next(place for place, each in enumerate(block) if each is statement)
            block[place:place] = ast.parse(f"_mutants_reached.update({indices!r})").body
    return {path: ast.fix_missing_locations(tree) for path, tree in trees.items() if path in changed}


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements that follow one another."""
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def function_objects(project: Project) -> Functions:
    """Return the functions of the imported package by file, qualified name and line."""
    inside = f"{project.source}{os.sep}"
    found = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(inside):
            found[_place(each.__code__)].append(each)
    return found


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def change_functions(functions: Functions, trees: dict[str, ast.Module]) -> None:
    """Give the functions of modules the code that their changed syntax has."""
    waiting = [compile(tree, path, "exec", dont_inherit=True) for path, tree in trees.items()]
    while waiting:
        code = waiting.pop()
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        for function in functions.get(_place(code), ()):
            function.__code__ = code


def change_constant(path: str, tree: ast.Module, name: str) -> None:
    """Evaluate a constant and those of its module that name it, and bind them wherever they are imported."""
    modules = [vars(module) for module in sys.modules.values() if isinstance(module, ModuleType)]
    own = next(each for each in modules if each.get("__file__") == path)
    changed = {name}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Name):
            used = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
            if used & changed:
                changed.add(target.id)
                old = own[target.id]
                new = eval(compile(ast.Expression(statement.value), path, "eval"), own)
                for each in modules:
                    if each.get(target.id) is old:
                        each[target.id] = new


class Watch:
    """A plug-in of pytest that notes how long each test takes and which mutants it reaches."""

    def __init__(self, reached: set[int]) -> None:
        self.reached = reached
        self.tests: dict[str, tuple[float, list[int]]] = {}
        self.useless: set[str] = set()
        self.failed = ""
        signal.signal(signal.SIGALRM, self._cut_off)

    @staticmethod
    def _cut_off(*_: object) -> None:
        raise TimeoutError("the test takes too long for judging mutants")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note what one test reaches."""
        self.reached.clear()
        before = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, CUT_OFF_S)
        answer = yield
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.tests[item.nodeid] = (time.process_time() - before, sorted(self.reached))
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the tests that show nothing, because they fail or are skipped."""
        if not report.passed:
            self.useless.add(report.nodeid)


class FirstFailure:
    """A plug-in of pytest that notes the first test that fails."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note the first failure, be it of a file that cannot even be imported."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    pytest_collectreport = pytest_runtest_logreport


@dataclass(frozen=True)
class Runner:
    """Runs tests in forks of a session of pytest that has collected none.

    A fork has only one thread, and polars starts others as soon as a file of tests makes a table: so each
    fork collects what it runs.
    """

    project: Project
    session: pytest.Session
    functions: Functions

    def run(self, notes: Watch | FirstFailure, places: Sequence[str], names: Sequence[str] = ()) -> None:
        """Run tests of files or folders, those of these names or all, until one fails."""
        self._prepare(notes)
        every = [each for each in self.session.perform_collect(places) if isinstance(each, pytest.Item)]
        chosen = {item.nodeid: item for item in every if not names or item.nodeid in names}
        items = [chosen[name] for name in names or chosen if name in chosen]
        for item, following in itertools.zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if notes.failed:
                return

    def _prepare(self, notes: Watch | FirstFailure) -> None:
        """Take notes, and let tests have a folder of this process for their files."""
        self.session.config.pluginmanager.register(notes)
        factory = self.session.config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp, factory._given_basetemp = None, Path(tempfile.mkdtemp()) / "tests"

    def observe(self, folder: str, trees: dict[str, ast.Module]) -> dict[str, Any]:
        """Return, for each test of a folder, how long it takes, what it reaches, and whether it is of use."""
        reached: set[int] = set()
        vars(builtins)["_mutants_reached"] = reached
        change_functions(self.functions, trees)
        watch = Watch(reached)
        self.run(watch, [f"tests/{folder}"])
        return {
            name: (seconds, indices, seconds <= SLOW_S and name not in watch.useless)
            for name, (seconds, indices) in watch.tests.items()
        }

    def judge(self, mutant: Mutant, *, is_changed: bool = True) -> dict[str, Any]:
        """Return which test fails first on the mutant, or on the unchanged code."""
        path = self.project.source / mutant.module
        tree = parse(path)
        site = list(sites(tree))[mutant.number]
        if is_changed:
            site.apply()
            ast.fix_missing_locations(tree)
            if isinstance(site.scope, str):
                try:
                    change_constant(str(path), tree, site.scope)
                except Exception as error:  # its module cannot be imported
                    return {"noticed_by": f"its import: {error}"}
            change_functions(self.functions, {str(path): tree})
        failure = FirstFailure()
        self.run(failure, [*dict.fromkeys(map(_file, mutant.tests))], mutant.tests)
        return {"noticed_by": failure.failed}


def warm_up(project: Project) -> None:
    """Import the packages whose arithmetic is changed."""
    # Two processes at a time are meant to be two threads at a time. Quick tests need no corpus.
    os.environ.update(POLARS_MAX_THREADS="1", OMP_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    os.environ.pop("CCL_BENCH_CORPUS", None)
    sys.path.insert(0, str(project.root / "src"))
    for name in project.tests:
        package = importlib.import_module(f"{project.package}.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def assign_tests(runner: Runner, mutants: Sequence[Mutant], processes: int) -> None:
    """Find the tests that reach each mutant: the quickest first, then the others of their files.

    Those may look at what another test of their file computed. A constant that no function names may be
    noticed by all tests of its package. Tests of one file stay in their order: they may share a fixture.
    """
    guards = runner.project.tests
    wanted = sorted({folder for mutant in mutants for folder in guards[mutant.package]})
    trees = watched(runner.project, mutants)
    forks = [Fork(functools.partial(runner.observe, folder, trees)) for folder in wanted]
    run_forks(forks, processes)
    for folder, fork in zip(wanted, forks, strict=True):
        if fork.answer is None:
            sys.exit(f"the tests of {folder} were cut short on the unchanged code")
    seen = {name: test for fork in forks for name, test in (fork.answer or {}).items()}
    order = {name: place for place, name in enumerate(seen)}
    for index, mutant in enumerate(mutants):
        guarding = tuple(f"tests/{folder}/" for folder in guards[mutant.package])
        reaching = {n for n, (_, reached, _) in seen.items() if index in reached and n.startswith(guarding)}
        if not reaching and mutant.is_constant:
            reaching = {name for name in seen if name.startswith(guarding[0])}
        files = {_file(name) for name in reaching}
        useful = [n for n, (*_, is_useful) in seen.items() if is_useful and _file(n) in files]
        quickest: dict[str, int] = {}
        for name in sorted(useful, key=lambda n: (n not in reaching, seen[n][0])):
            if mutant.expected_s + seen[name][0] <= PATIENCE_S:
                quickest.setdefault(_file(name), len(quickest))
                mutant.tests.append(name)
                mutant.expected_s += seen[name][0]
        mutant.tests.sort(key=lambda n: (quickest[_file(n)], order[n]))


def _file(test: str) -> str:
    return test.partition("::")[0]


def judge_all(runner: Runner, mutants: Sequence[Mutant], processes: int, output: Path) -> None:
    """Run the tests of every mutant that some test reaches; print survivors as they appear.

    Tests that fail on the unchanged code, too, if they run alone, have noticed nothing.
    """
    output.parent.mkdir(parents=True, exist_ok=True)

    def run(chosen: Sequence[Mutant], ended: Callable[[Mutant, str], None], *, is_changed: bool) -> None:
        forks = [
            Fork(functools.partial(runner.judge, each, is_changed=is_changed), 10 + 4 * each.expected_s)
            for each in chosen
        ]

        def take(place: int) -> None:
            answer = forks[place].answer
            ended(chosen[place], "the time limit" if answer is None else answer["noticed_by"])
            output.write_text(json.dumps([vars(mutant) for mutant in mutants], indent=1) + "\n")

        run_forks(forks, processes, take)

    def judged(mutant: Mutant, noticed_by: str) -> None:
        mutant.noticed_by = noticed_by
        mutant.outcome = "noticed" if noticed_by else "survived"
        if not noticed_by:
            print(_line(mutant), flush=True)

    def checked(mutant: Mutant, failed: str) -> None:
        for each in mutants:
            if failed and each.noticed_by == mutant.noticed_by and each.tests == mutant.tests:
                each.outcome, each.noticed_by = "survived", ""
                print(f"{_line(each)} ({failed} fails without the change, too)", flush=True)

    for mutant in mutants:
        mutant.outcome = "waiting" if mutant.tests else "unreached"
        if not mutant.tests:
            print(_line(mutant), flush=True)
    run([mutant for mutant in mutants if mutant.tests], judged, is_changed=True)
    for mutant in mutants:
        if mutant.noticed_by in mutant.tests:
            del mutant.tests[mutant.tests.index(mutant.noticed_by) + 1 :]
    distinct = {tuple(mutant.tests): mutant for mutant in mutants if mutant.noticed_by in mutant.tests}
    run([*distinct.values()], checked, is_changed=False)


def _line(mutant: Mutant) -> str:
    why = f"{len(mutant.tests)} tests pass" if mutant.tests else "no quick test runs it"
    return f"{mutant.module}:{mutant.line}: {mutant.change}: {why}"


@dataclass
class Session:
    """A plug-in of pytest that collects no tests, and does something else instead of running them."""

    action: Callable[[pytest.Session], None]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collect nothing."""
        return True

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do what is to be done."""
        self.action(session)
        return True


def main(arguments: Sequence[str] | None = None, project: Project | None = None) -> int:
    """Sample mutants, run their tests, and print survivors and their share."""
    project = project or Project(ROOT, "ccl_bench", TESTS)
    parser = argparse.ArgumentParser(description="sample mistakes in the arithmetic; do tests notice them?")
    parser.add_argument("--sample", type=int, default=60, help="mutants altogether (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which sample (default: %(default)s)")
    parser.add_argument("--only", choices=project.tests, help="one package")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=project.root / "build" / "mutants.json")
    chosen = parser.parse_args(arguments)
    packages = [chosen.only] if chosen.only else list(project.tests)
    mutants = sample(project, packages, chosen.sample, chosen.seed)
    warm_up(project)
    functions = function_objects(project)
    gc.freeze()  # forks share what they do not look through

    def run(session: pytest.Session) -> None:
        runner = Runner(project, session, functions)
        assign_tests(runner, mutants, chosen.processes)
        judge_all(runner, mutants, chosen.processes, chosen.output)

    os.chdir(project.root)
    options = ["-qq", "-s", "-p", "no:cacheprovider", f"--rootdir={project.root}"]
    options += [f"--ignore-glob={name}" for name in LEFT_OUT]
    if pytest.main([*options, "tests"], plugins=[Session(run)]) == pytest.ExitCode.INTERNAL_ERROR:
        return 1
    survivors = Counter(m.package for m in mutants if not m.noticed_by)
    for package in packages:
        total = sum(mutant.package == package for mutant in mutants)
        print(f"{package}: {survivors[package]} of {total} survive")
    share = 100 * survivors.total() / max(1, len(mutants))
    print(f"{survivors.total()} of {len(mutants)} mutants survive: {share:.0f} %  ({chosen.output})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
