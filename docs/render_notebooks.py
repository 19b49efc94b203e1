"""Run the notebooks of the manual, and render them as its pages.

    python docs/render_notebooks.py

writes the outputs of their cells into the notebooks. `docs/generate.py` turns these into pages and pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NOTEBOOKS = sorted((HERE / "notebooks").glob("*.ipynb"))

_KEPT = ("image/svg+xml", "text/html", "text/plain")
"""Forms of an output that are kept, the first that there is."""

_SECONDS = 300


def execute(notebook: Path) -> Any:
    """Return a notebook with the outputs of its cells, run in the root of the checkout.

    Raises nbclient.exceptions.CellExecutionError where a cell fails.
    """
    from nbclient import NotebookClient

    found = nbformat.read(notebook, as_version=4)
    NotebookClient(found, timeout=_SECONDS, resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in found.cells:
        cell.metadata.clear()
        for output in cell.get("outputs", ()):
            _keep_one_form(output)
    found.metadata.get("language_info", {}).pop("version", None)
    return found


def _keep_one_form(output: Any) -> None:
    forms = output.get("data")
    if forms:
        first = next(form for form in _KEPT if form in forms)
        output["data"] = {form: forms[form] for form in dict.fromkeys((first, "text/plain")) if form in forms}


def render(notebook: Path, pictures: Path) -> str:
    """Return a notebook as Markdown; its drawings go into the folder `pictures` next to the page."""
    parts = []
    drawn = 0
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            forms = output.get("data", {})
            if "image/svg+xml" in forms:
                drawn += 1
                name = f"{notebook.stem}-{drawn}.svg"
                pictures.mkdir(exist_ok=True)
                (pictures / name).write_text(forms["image/svg+xml"], encoding="utf-8")
                parts.append(f"![{forms['text/plain'].splitlines()[-1]}]({pictures.name}/{name})")
            elif "text/html" in forms:
                parts.append(f"<div>\n{forms['text/html'].strip()}\n</div>")
            else:
                parts.append(f"```text\n{(output.get('text') or forms.get('text/plain', '')).rstrip()}\n```")
    source = f"This page is the notebook `docs/notebooks/{notebook.name}` of the repository."
    return "\n\n".join([*parts, source]) + "\n"


if __name__ == "__main__":
    for place in NOTEBOOKS:
        nbformat.write(execute(place), place)
        print(place.relative_to(ROOT))
