"""`make mutants`: it notices arithmetic that tests guard, and names what none does."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import mutant_sites
import mutants
import pytest
from checkout import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
LIMIT = 3
EDGE = 7
EDGES = (EDGE, LIMIT)

def guarded(a, b):
    return a - b

def unguarded(a, b):
    return a * b

def unreached(a):
    return not a

def below(a):
    return a < LIMIT

def branch(a):
    if a:
        return a % 4
    return a

def doubled(a):
    return a + a
"""

TESTS = """
from pathlib import Path

import pytest
from made.sums import EDGES, below, branch, doubled, guarded, unguarded

@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    (tmp_path_factory.getbasetemp() / "once").mkdir()

def test_a_difference():
    assert guarded(5, 3) == 2

def test_a_product_with_one():
    assert unguarded(5, 1) == 5

def test_a_constant_that_no_function_names():
    assert EDGES[0] == 7

def test_a_limit():
    assert below(2) and not below(3)

def test_a_branch_that_is_not_taken():
    assert branch(0) == 0

def test_a_quick_one_that_shares_what_is_made_once(made_once):
    assert unguarded(7, 1) == 7

def test_a_slow_one_that_shares_it(made_once):
    assert sum(unguarded(1, 1) for _ in range(1_000_000)) == 1_000_000

def test_that_passes_only_once():
    Path("passed").mkdir()
    assert doubled(0) == 0
"""

OTHER_TESTS = """
from made.sums import unguarded

def test_that_is_quicker_than_one_of_the_other_file():
    assert sum(unguarded(1, 1) for _ in range(10_000)) == 10_000
"""

RUN = """
import sys
from pathlib import Path
import mutant_sites
import mutants
project = mutants.Project(Path(sys.argv[1]), "made", {"sums": ("sums",)})
sys.exit(mutants.main(["--sample", "9"], project))
"""


def test_guarded_arithmetic_is_noticed_and_the_rest_is_named(tmp_path: Path) -> None:
    package = tmp_path / "src" / "made" / "sums"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(SOURCE)
    (tmp_path / "tests" / "sums").mkdir(parents=True)
    (tmp_path / "tests" / "sums" / "conftest.py").touch()
    (tmp_path / "tests" / "sums" / "test_sums.py").write_text(TESTS)
    (tmp_path / "tests" / "sums" / "test_others.py").write_text(OTHER_TESTS)
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = {
        (row["change"], row["outcome"]) for row in json.loads((tmp_path / "build/mutants.json").read_text())
    }
    assert found == {
        ("3 -> 4", "noticed"),
        ("7 -> 8", "noticed"),
        ("Sub -> Add", "noticed"),
        ("Mult -> Div", "survived"),
        ("Not left out", "unreached"),
        ("Lt -> LtE", "noticed"),
        ("Mod -> FloorDiv", "unreached"),
        ("4 -> 5", "unreached"),
        ("Add -> Sub", "survived"),
    }
    assert ran.stdout.splitlines()[-1].startswith("5 of 9 mutants survive: 56 %")
    assert (package / "__init__.py").read_text() == SOURCE


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("a + b / 2", ["a - b / 2", "a + b * 2", "a + b / 3"]),
        ("a <= 0.5", ["a < 0.5", "a <= 1.0"]),
        ("a and not b", ["a or not b", "a and (not not b)"]),
        ("max(a, 0)", ["min(a, 0)", "max(a, 1)"]),
        ("all(a)", ["any(a)"]),
        ("sorted(a)", ["sorted(a, reverse=True)"]),
        ("a.sort(descending=True)", ["a.sort(descending=False)"]),
        ("zip(a, b, strict=True)", []),
        ("chart(width=20, value=a)", []),
        ("{'strokeWidth': 2, 'value': 3}", ["{'strokeWidth': 2, 'value': 4}"]),
        ("{'width': a * 2}", ["{'width': a / 2}", "{'width': a * 3}"]),
        ("f'{a + 1}'", []),
    ],
)
def test_what_is_changed(code: str, changed: list[str]) -> None:
    text = f"def f(a, b):\n    return {code}"
    found = []
    for number in range(len(list(mutant_sites.sites(ast.parse(text))))):
        tree = ast.parse(text)
        list(mutant_sites.sites(tree))[number].apply()
        found.append(ast.unparse(ast.fix_missing_locations(tree)))
    assert sorted(found) == sorted(f"def f(a, b):\n    return {each}" for each in changed)


def test_the_folders_of_tests_are_there() -> None:
    folders = {folder for each in mutants.TESTS.values() for folder in each}
    assert {folder for folder in folders if not (ROOT / "tests" / folder).is_dir()} == set()
