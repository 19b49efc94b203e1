"""What `make defences` takes out is there, for every row of the threat model, and what it reports is true."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import defences
import pytest

if TYPE_CHECKING:
    from pathlib import Path

PAGE = defences.PAGE.read_text(encoding="utf-8")
DATA = tomllib.loads(defences.DATA.read_text(encoding="utf-8"))


def test_every_row_has_defences_that_are_in_the_source_and_tests_that_exist() -> None:
    found, mistakes = defences.read(DATA, defences.rows(PAGE))
    assert mistakes == []
    assert len(found) > 100


def test_the_rows_are_those_of_the_tables_of_attacks() -> None:
    rows = defences.rows(PAGE)
    assert len(rows) > 50
    sections = {row.attack: row.section for row in rows}
    assert sections["environment variables"] == "What leaves the machine"
    assert "names of published runs and files, of publishers" not in sections  # in a table of outputs
    assert all(row.files for row in rows)


@pytest.mark.parametrize(
    ("name", "value", "mistake"),
    [
        ("row", "an attack that nobody knows", "0 rows begin so"),
        ("row", "", "rows begin so"),
        ("old", "text that is nowhere", "has the text 0 times"),
        ("old", "import", "has the text"),
        ("file", "no/such/file.py", "has the text 0 times"),
        ("tests", ["tests/card/test_card_hostile.py::test_that_is_nowhere"], "there is no test"),
        ("tests", ["tests/card/test_card_hostile.py"], "there is no test"),
    ],
)
def test_an_entry_that_is_not_true_is_a_mistake(name: str, value: object, mistake: str) -> None:
    (first, *_) = DATA["defence"]
    _, mistakes = defences.read({"defence": [first | {name: value}]}, defences.rows(PAGE))
    assert any(mistake in each for each in mistakes if "has no defence" not in each)


def test_only_a_test_that_fails_has_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = defences.Row("Files of a run", "a pickle", frozenset())
    defence = defences.Defence(row, "a bound", (), ("x.py::test_a", "x.py::test_b", "x.py::test_c"))
    lines = ["PASSED x.py::test_a[1]", "FAILED x.py::test_a[2 3] - assert", "ERROR x.py::test_b - boom"]
    output = "\n".join([*lines, "PASSED x.py::test_c", ""])
    monkeypatch.setattr(defences, "changed_environment", lambda *_: tmp_path)
    run = defences.Run(*defences.outcomes(output), output, 1.0)
    monkeypatch.setattr(defences, "run_tests", lambda *_: run)
    noticing, _ = defences.judge(defence)
    assert noticing == ["x.py::test_a"]
    assert defences.table([(defence, noticing)], run).splitlines()[2:] == [
        "| Files of a run | 1 | 4 | 2 | 1 | 0 |",
        "| all | 1 | 4 | 2 | 1 | 0 |",
    ]
