"""Mutants: samples small mistakes in the arithmetic, and prints those that no quick test notices.

A mutant is one module with one operator, constant or call changed. No file of the checkout changes: a
finder of modules hands the changed module to a fork of this process, which has imported the libraries
already. A first run of the unchanged code finds which tests reach which mutant, and how long they take.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import importlib
import json
import os
import pkgutil
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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

WAITING = 20
"""Tests may wait so many times as long as they may compute: others use the machine too."""


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


@dataclass(frozen=True)
class Site:
    """A place in a module where one thing can be changed."""

    line: int
    change: str
    scope: ast.stmt | str
    """The innermost statement around it; outside functions, the name of the constant."""
    apply: Callable[[], None]


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


_SWAPPED = [
    (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or), (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot),
]  # fmt: skip
OPERATORS: dict[type, type] = {a: b for pair in _SWAPPED for a, b in (pair, pair[::-1])}
OPERATORS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.USub: ast.UAdd}

_SWAPPED_CALLS = [
    ("min", "max"), ("any", "all"), ("first", "last"), ("floor", "ceil"),
    ("min_horizontal", "max_horizontal"), ("any_horizontal", "all_horizontal"),
]  # fmt: skip
CALLS = {a: b for pair in _SWAPPED_CALLS for a, b in (pair, pair[::-1])}

UNTOUCHED = (ast.Raise, ast.JoinedStr)
"""Messages are no arithmetic."""

RUN = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
"""How pytest ends after it has run every test."""

HARMLESS_KEYWORDS = {"revision", "strict", "maintain_order", "slots", "frozen", "named"}


def sites(tree: ast.Module) -> Iterator[Site]:
    """Yield what can be changed in a module, always in the same order."""
    for statement in tree.body:
        yield from _sites_of_statement(statement)


def _sites_of_statement(statement: ast.stmt) -> Iterator[Site]:
    if isinstance(statement, ast.FunctionDef):
        for part in statement.body:
            yield from _sites(part, part)
    elif isinstance(statement, ast.ClassDef):
        for part in statement.body:
            if isinstance(part, ast.FunctionDef):
                yield from _sites_of_statement(part)
    elif isinstance(statement, ast.Assign) and isinstance(name := statement.targets[0], ast.Name):
        yield from _sites(statement.value, name.id)


def _sites(node: ast.AST, scope: ast.stmt | str) -> Iterator[Site]:
    scope = node if isinstance(node, ast.stmt) else scope
    if isinstance(node, UNTOUCHED) or (isinstance(node, ast.keyword) and node.arg in HARMLESS_KEYWORDS):
        return
    for change, apply in _changes(node):
        yield Site(getattr(node, "lineno", 0), change, scope, apply)
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "args"} and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _sites(child, scope)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what can be changed at this very node, and the action that changes it."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp):
        if new := OPERATORS.get(type(node.op)):
            yield _named(node.op, new), lambda: setattr(node, "op", new())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
            twice = ast.copy_location(ast.UnaryOp(node.op, node.operand), node)
            yield f"{type(node.op).__name__} left out", lambda: setattr(node, "operand", twice)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        swapped = OPERATORS[type(node.ops[0])]
        yield _named(node.ops[0], swapped), lambda: node.ops.__setitem__(0, swapped())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        other = {bool: lambda old: not old, int: lambda old: old + 1, float: lambda old: 2 * old or 1.0}
        value = other[type(node.value)](node.value)
        yield f"{node.value} -> {value}", lambda: setattr(node, "value", value)
    elif isinstance(node, ast.Call):
        yield from _changed_calls(node)


def _changed_calls(node: ast.Call) -> Iterator[tuple[str, Callable[[], None]]]:
    function = node.func
    at, old = (
        ("id", function.id) if isinstance(function, ast.Name) else ("attr", getattr(function, "attr", ""))
    )
    if new := CALLS.get(old):
        yield f"{old} -> {new}", lambda: setattr(function, at, new)
    if old == "sorted" and not any(each.arg == "reverse" for each in node.keywords):
        backwards = ast.copy_location(ast.keyword("reverse", ast.Constant(True)), node)
        yield "sorted backwards", lambda: node.keywords.append(backwards)


def _named(old: ast.AST, new: type) -> str:
    return f"{type(old).__name__} -> {new.__name__}"


def parse(path: Path) -> ast.Module:
    """Return the syntax of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


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


@dataclass
class ChangedModules:
    """A finder that hands out changed modules, by their paths, in place of the files."""

    package: str
    trees: dict[str, ast.Module]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return where a module comes from, None where it is not changed."""
        found = PathFinder.find_spec(name, path, target) if name.startswith(self.package) else None
        if found is None or found.origin not in self.trees:
            return None
        found.loader = _ChangedModule(name, found.origin, self.trees[found.origin])
        return found


class _ChangedModule(SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> Any:
        return compile(self._tree, self.get_filename(fullname), "exec", dont_inherit=True)


class Watch:
    """A plug-in of pytest that notes how long each test takes and which mutants it reaches."""

    def __init__(self) -> None:
        self.reached: set[int] = set()
        self.tests: dict[str, tuple[float, list[int]]] = {}
        self.at_import: list[int] = []
        self.useless: set[str] = set()
        vars(builtins)["_mutants_reached"] = self.reached
        signal.signal(signal.SIGALRM, self._cut_off)

    @staticmethod
    def _cut_off(*_: object) -> None:
        raise TimeoutError("the test takes too long for judging mutants")

    def pytest_collection_finish(self) -> None:
        """Note what the imports of the tests reach."""
        self.at_import = sorted(self.reached)

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


@dataclass(eq=False)
class Chosen:
    """A plug-in of pytest that runs only some tests, in their order, and notes the first that fails."""

    tests: Sequence[str]
    failed: str = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the chosen tests."""
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self.tests if name in by_name]

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note the first failure, be it of a file that cannot even be imported."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def run_pytest(
    project: Project,
    arguments: Sequence[str],
    plugin: Any,
    trees: dict[str, ast.Module],
    ended_by: set[pytest.ExitCode],
) -> None:
    """Run tests in this process on changed modules; raise RuntimeError where pytest ends in another way."""
    sys.meta_path.insert(0, ChangedModules(project.package, trees))
    os.chdir(project.root)
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "-p", "no:cacheprovider", f"--rootdir={project.root}", f"--basetemp={folder}/tests"]
        options += [f"--ignore-glob={name}" for name in LEFT_OUT]
        ended = pytest.main([*options, *arguments], plugins=[plugin])
    if ended not in ended_by:
        raise RuntimeError(f"pytest ended with {ended!r}")


def observe(project: Project, folders: Sequence[str], trees: dict[str, ast.Module]) -> dict[str, Any]:
    """Return, for each test of the folders, how long it takes, what it reaches, and whether it is of use.

    What their imports reach has no name.
    """
    watch = Watch()
    run_pytest(project, [f"tests/{folder}" for folder in folders], watch, trees, RUN)
    return {"": (0.0, watch.at_import, False)} | {
        name: (seconds, reached, seconds <= SLOW_S and name not in watch.useless)
        for name, (seconds, reached) in watch.tests.items()
    }


def judge(project: Project, mutant: Mutant) -> dict[str, Any]:
    """Return whether a test fails on the mutant."""
    chosen = Chosen(mutant.tests)
    files = list(dict.fromkeys(name.partition("::")[0] for name in mutant.tests))
    path = project.source / mutant.module
    tree = parse(path)
    list(sites(tree))[mutant.number].apply()
    # A changed module that cannot be imported interrupts pytest, and `-x` does at the first failure.
    ended_by = {*RUN, pytest.ExitCode.INTERRUPTED}
    run_pytest(project, ["-x", *files], chosen, {str(path): ast.fix_missing_locations(tree)}, ended_by)
    return {"noticed_by": chosen.failed}


@dataclass
class Fork:
    """An action that runs in a fork of this process and leaves its answer in a file."""

    action: Callable[[], dict[str, Any]]
    limit_s: float = 0.0
    """Of computing; 0 for none."""
    answer: dict[str, Any] | None = None
    """None where the process was ended: it took too long, or crashed."""

    def start(self, file: Path) -> int:
        """Start it and return the number of its process."""
        self._file = file
        sys.stdout.flush()
        if process := os.fork():
            return process
        os.setsid()
        signal.setitimer(signal.ITIMER_PROF, self.limit_s)
        signal.setitimer(signal.ITIMER_REAL, WAITING * self.limit_s)
        silent = os.open(file.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            file.write_text(json.dumps(self.action()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def end(self, process: int, status: int) -> None:
        """Take the answer of the process that has ended, and end those that it left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                sys.exit(f"tests could not be run:\n{self._file.with_suffix('.log').read_text()}")
            self.answer = json.loads(self._file.read_text())


def run_forks(forks: Sequence[Fork], processes: int, ended: Callable[[int], None] = lambda _: None) -> None:
    """Run forks, so many at a time; `ended` gets the place of each that ends."""
    folder = Path(tempfile.mkdtemp())
    running: dict[int, int] = {}
    waiting = list(range(len(forks)))[::-1]
    while waiting or running:
        while waiting and len(running) < processes:
            place = waiting.pop()
            running[forks[place].start(folder / f"{place}.json")] = place
        process, status = os.wait()
        if process in running:
            place = running.pop(process)
            forks[place].end(process, status)
            ended(place)
    shutil.rmtree(folder)


def warm_up(project: Project) -> None:
    """Import what every mutant needs, and forget the package itself, which each imports changed."""
    # Two processes at a time are meant to be two threads at a time. Quick tests need no corpus.
    os.environ.update(POLARS_MAX_THREADS="1", OMP_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    os.environ.pop("CCL_BENCH_CORPUS", None)
    sys.path.insert(0, str(project.root / "src"))
    package = importlib.import_module(project.package)
    for name in project.tests:
        found = importlib.import_module(f"{project.package}.{name}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            importlib.import_module(module.name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package.__name__]:
        del sys.modules[name]


def assign_tests(project: Project, mutants: Sequence[Mutant], processes: int) -> None:
    """Find the tests that reach each mutant: the quickest first, then the others of their files.

    Those may look at what another test of their file computed. What runs when a module is imported, as a
    constant that no function names does, may be noticed by all tests of its package.
    """
    wanted = {folder for mutant in mutants for folder in project.tests[mutant.module.partition("/")[0]]}
    trees = watched(project, mutants)
    forks = [Fork(lambda folder=folder: observe(project, [folder], trees)) for folder in sorted(wanted)]
    run_forks(forks, processes)
    for folder, fork in zip(sorted(wanted), forks, strict=True):
        if fork.answer is None:
            sys.exit(f"the tests of {folder} were cut short on the unchanged code")
    at_import = {index for fork in forks for index in (fork.answer or {}).pop("")[1]}
    seen = {name: test for fork in forks for name, test in (fork.answer or {}).items()}
    for index, mutant in enumerate(mutants):
        folders = project.tests[mutant.module.partition("/")[0]]
        guarding = tuple(f"tests/{folder}/" for folder in folders)
        reaching = {n for n, (_, reached, _) in seen.items() if index in reached and n.startswith(guarding)}
        if not reaching and (mutant.is_constant or index in at_import):
            reaching = {name for name in seen if name.startswith(guarding[0])}
        files = {name.partition("::")[0] for name in reaching}
        useful = [n for n, (*_, is_useful) in seen.items() if is_useful and n.partition("::")[0] in files]
        for name in sorted(useful, key=lambda n: (n not in reaching, seen[n][0])):
            if mutant.expected_s + seen[name][0] <= PATIENCE_S:
                mutant.tests.append(name)
                mutant.expected_s += seen[name][0]


def judge_all(project: Project, mutants: Sequence[Mutant], processes: int, output: Path) -> None:
    """Run the tests of every mutant that some test reaches; print survivors as they appear."""
    reached = [mutant for mutant in mutants if mutant.tests]
    forks = [Fork(lambda m=m: judge(project, m), 10 + 4 * m.expected_s) for m in reached]

    def ended(place: int) -> None:
        mutant, fork = reached[place], forks[place]
        mutant.noticed_by = "the time limit" if fork.answer is None else fork.answer["noticed_by"]
        mutant.outcome = "noticed" if mutant.noticed_by else "survived"
        if not mutant.noticed_by:
            print(_line(mutant), flush=True)
        output.write_text(json.dumps([vars(mutant) for mutant in mutants], indent=1) + "\n")

    output.parent.mkdir(parents=True, exist_ok=True)
    for mutant in mutants:
        mutant.outcome = "waiting" if mutant.tests else "unreached"
        if not mutant.tests:
            print(_line(mutant), flush=True)
    run_forks(forks, processes, ended)


def _line(mutant: Mutant) -> str:
    why = f"{len(mutant.tests)} tests pass" if mutant.tests else "no quick test runs it"
    return f"{mutant.module}:{mutant.line}: {mutant.change}: {why}"


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
    assign_tests(project, mutants, chosen.processes)
    judge_all(project, mutants, chosen.processes, chosen.output)
    survivors = Counter(m.module.partition("/")[0] for m in mutants if not m.noticed_by)
    for package in packages:
        total = sum(mutant.module.startswith(f"{package}/") for mutant in mutants)
        print(f"{package}: {survivors[package]} of {total} survive")
    share = 100 * survivors.total() / max(1, len(mutants))
    print(f"{survivors.total()} of {len(mutants)} mutants survive: {share:.0f} %  ({chosen.output})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
