"""What programs and notebooks use, and what the commands are built on: a run, opened once, and its answers.

`measured_run` opens a run and asks it, `tables` gives its tables as frames, `comparison` compares runs, and
`charts` are the drawings of a report one by one. `display` shows all of these in a notebook.
"""

from __future__ import annotations

from ccl_bench.api import display
from ccl_bench.api.charts import Chart
from ccl_bench.api.comparison import ComparedRuns, compare
from ccl_bench.api.measured_run import MeasuredRun, open

__all__ = ["Chart", "ComparedRuns", "MeasuredRun", "compare", "open"]

display.register()
