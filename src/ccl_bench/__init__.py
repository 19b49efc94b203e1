"""CCL-Bench: a trace-based benchmark of LLM infrastructure.

The names here are the public interface: to read a run and its results, to record one, and to add metrics,
tables and trace formats from a package of your own. Each is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.analysis.derived import derived as derived
    from ccl_bench.api.charts import Chart as Chart
    from ccl_bench.api.comparison import ComparedRuns as ComparedRuns
    from ccl_bench.api.comparison import compare as compare
    from ccl_bench.api.forecasts import forecast as forecast
    from ccl_bench.api.measured_run import MeasuredRun as MeasuredRun
    from ccl_bench.api.measured_run import open as open
    from ccl_bench.base.errors import CclBenchError as CclBenchError
    from ccl_bench.base.errors import InputError as InputError
    from ccl_bench.base.errors import NotApplicable as NotApplicable
    from ccl_bench.base.errors import NotMeasurable as NotMeasurable
    from ccl_bench.base.errors import UsageError as UsageError
    from ccl_bench.base.findings import Finding as Finding
    from ccl_bench.base.lazy_imports import pl as pl
    from ccl_bench.card import Card as Card
    from ccl_bench.card import read_card as read_card
    from ccl_bench.collect import Schedule as Schedule
    from ccl_bench.collect import profile as profile
    from ccl_bench.collect.search_runs import Search as Search
    from ccl_bench.collect.search_runs import search as search
    from ccl_bench.engine import use_engine as use_engine
    from ccl_bench.metrics import Measurement as Measurement
    from ccl_bench.metrics import metric as metric
    from ccl_bench.result import Result as Result
    from ccl_bench.run import Run as Run
    from ccl_bench.run import open_run as open_run
    from ccl_bench.schema import TABLES as TABLES
    from ccl_bench.trace.content import TraceContent as TraceContent
    from ccl_bench.trace.formats import Format as Format
    from ccl_bench.trace.formats import Identity as Identity
    from ccl_bench.trace.formats import register as register
    from ccl_bench.trace.memory import use_memory as use_memory

__version__ = "0.1.0"

PUBLIC = {
    "open": "ccl_bench.api.measured_run",
    "compare": "ccl_bench.api.comparison",
    "forecast": "ccl_bench.api.forecasts",
    "search": "ccl_bench.collect.search_runs",
    "MeasuredRun": "ccl_bench.api.measured_run",
    "ComparedRuns": "ccl_bench.api.comparison",
    "Search": "ccl_bench.collect.search_runs",
    "Chart": "ccl_bench.api.charts",
    "use_engine": "ccl_bench.engine",
    "use_memory": "ccl_bench.trace.memory",
    "CclBenchError": "ccl_bench.base.errors",
    "UsageError": "ccl_bench.base.errors",
    "NotApplicable": "ccl_bench.base.errors",
    "NotMeasurable": "ccl_bench.base.errors",
    "InputError": "ccl_bench.base.errors",
    "Finding": "ccl_bench.base.findings",
    "pl": "ccl_bench.base.lazy_imports",
    "open_run": "ccl_bench.run",
    "Run": "ccl_bench.run",
    "Result": "ccl_bench.result",
    "read_card": "ccl_bench.card",
    "Card": "ccl_bench.card",
    "profile": "ccl_bench.collect",
    "Schedule": "ccl_bench.collect",
    "metric": "ccl_bench.metrics",
    "Measurement": "ccl_bench.metrics",
    "derived": "ccl_bench.analysis.derived",
    "TABLES": "ccl_bench.schema",
    "TraceContent": "ccl_bench.trace.content",
    "Format": "ccl_bench.trace.formats",
    "Identity": "ccl_bench.trace.formats",
    "register": "ccl_bench.trace.formats",
}
"""Public name → the module that defines it."""


def __getattr__(name: str) -> object:
    """Load a public name at its first use."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = value = getattr(import_module(PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return [*PUBLIC, "__version__"]
