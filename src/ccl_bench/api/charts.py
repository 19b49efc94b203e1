"""Single charts of a report: Vega-Lite specifications that a notebook draws."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ccl_bench.base.errors import UsageError
from ccl_bench.base.extras import require
from ccl_bench.report.render import ImageForm
from ccl_bench.report.render.images import image, static_spec

if TYPE_CHECKING:
    from ccl_bench.report import page_model

VEGA_LITE = "application/vnd.vegalite.v5+json"
"""Media type under which notebooks draw a specification."""

_SPEC = ".json"


class Chart:
    """A drawing with its data; `spec` is its Vega-Lite specification, in plain colours on white."""

    def __init__(self, chart: page_model.PageChart) -> None:
        self._chart = chart
        self.name = chart.key
        self.title = chart.title
        self.summary = chart.summary
        """Its summary, in one or two sentences."""
        self.spec: dict[str, Any] = static_spec(chart)

    def __repr__(self) -> str:
        return f"<Chart {self.name}: {self.title}>"

    def _repr_mimebundle_(self, **_options: object) -> dict[str, Any]:
        """Return the representations for notebooks: the specification, and a picture if one can be drawn."""
        picture = {"image/svg+xml": image(self._chart, "svg").decode()} if find_spec("vl_convert") else {}
        return {VEGA_LITE: self.spec, **picture, "text/plain": f"{self!r}\n{self.summary}"}

    def save(self, output: str | Path) -> Path:
        """Write the chart as SVG or PNG, or its specification as JSON, by the name of the file."""
        target = Path(output)
        form = target.suffix.lstrip(".")
        if target.suffix == _SPEC:
            target.write_text(json.dumps(self.spec, indent=2) + "\n", encoding="utf-8")
        elif form in get_args(ImageForm):
            target.write_bytes(image(self._chart, "png" if form == "png" else "svg"))
        else:
            endings = ", ".join([*(f".{each}" for each in get_args(ImageForm)), _SPEC])
            raise UsageError(
                f"the name {target.name} does not state the form of the chart", fix=f"end it in {endings}"
            )
        return target

    def to_altair(self) -> Any:
        """Return the chart as an Altair object, to change or to combine; needs the package `altair`."""
        return require("altair", "notebook").Chart.from_dict(self.spec)
