"""The notebooks of the manual run, and show what is stored in them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

if TYPE_CHECKING:
    from collections.abc import Iterator


def shown(notebook: object) -> Iterator[tuple[str, str]]:
    """Yield each code cell with the texts that it shows."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [output.get("text") or output["data"]["text/plain"] for output in cell.outputs]
            pages = [output.get("data", {}).get("text/html", "") for output in cell.outputs]
            yield cell.source, "".join([*texts, *pages])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_stored_in_it(path: Path) -> None:
    import nbformat
    from render_notebooks import execute

    stored, executed = nbformat.read(path, as_version=4), execute(path)
    assert [*shown(executed)] == [*shown(stored)], "run: make outputs"
    assert not any(
        output.output_type == "error" for cell in executed.cells for output in cell.get("outputs", ())
    )
    assert (
        sum(
            "image/svg+xml" in output.get("data", {})
            for cell in executed.cells
            for output in cell.get("outputs", ())
        )
        >= 1
    )
