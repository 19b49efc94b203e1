"""The table of recordings and metrics in the manual: its rows, its columns, and what each cell may hold."""

from __future__ import annotations

import importlib.util
import re

import pytest
from commands import ROOT

from ccl_bench import metrics
from ccl_bench.analysis.derived import DERIVED, raw_needs
from ccl_bench.trace import formats


@pytest.fixture(scope="module")
def source_table():
    spec = importlib.util.spec_from_file_location("source_table", ROOT / "docs" / "source_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    DERIVED.load()
    return module


@pytest.fixture(scope="module")
def cells(source_table):
    """Return (metric, source) -> cell, as the manual has them."""
    text = (ROOT / "docs" / "profilers.md").read_text(encoding="utf-8")
    lines = text.split(source_table.BEGIN)[1].split(source_table.END)[0].strip().splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert head == ["metric", *source_table.SOURCES]
    return {
        (row[0].strip("`"), source): cell
        for row in rows
        for source, cell in zip(source_table.SOURCES, row[1:], strict=True)
    }


def test_every_format_has_a_column(source_table):
    listed = {name for names in source_table.SOURCES.values() for name in names}
    assert listed == {form.name for form in formats.load()}, "edit SOURCES of docs/source_table.py"


def test_every_metric_of_traces_has_a_row(source_table, cells):
    expected = {metric.name for metric in metrics.load() if any(source_table.row(metric, set()))}
    assert {name for name, _ in cells} == expected, "run: make sources"


def test_open_cells_are_those_of_the_registry(source_table, cells):
    for metric in metrics.load():
        given = {source for (name, source), cell in cells.items() if (name, cell) == (metric.name, "●")}
        names = {name for source in given for name in source_table.SOURCES[source]}
        for source, cell in zip(source_table.SOURCES, source_table.row(metric, names), strict=True):
            assert cells.get((metric.name, source), "") == cell


def test_a_metric_comes_only_from_recordings_that_hold_a_table_of_it(source_table, cells):
    forms = {form.name: form for form in formats.load()}
    registry = metrics.load()
    for (name, source), cell in cells.items():
        if cell == "●":
            raw = set().union(*(raw_needs(way.needs) for way in registry.get(name).sources))
            assert any(raw & forms[form].tables for form in source_table.SOURCES[source])


def test_examples_give_the_metrics_of_their_column(source_table, cells):
    """Counted here from the examples alone: none of what they give is missing."""
    for metric, given in source_table.given_by(sorted((ROOT / "examples" / "runs").iterdir())).items():
        for source, names in source_table.SOURCES.items():
            if given.intersection(names):
                assert cells[metric, source] == "●"


def test_pages_that_the_table_of_questions_names_exist():
    text = (ROOT / "docs" / "profilers.md").read_text(encoding="utf-8")
    pages = set(re.findall(r"\]\(([\w-]+\.md)", text))
    assert pages
    assert all((ROOT / "docs" / page).exists() for page in pages)
