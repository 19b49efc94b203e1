"""Results as they would be read from a file, with only what a comparison looks at."""

from __future__ import annotations

from typing import Any

from ccl_bench.result import Provenance, Result, ResultFinding


def result(
    value: float | None, *steps: float, metric: str = "iteration_wall_clock_time", **more: Any
) -> Result:
    """Return a result with one sample for each of `steps`."""
    details = {"per_step_s": {str(n): step for n, step in enumerate(steps)}} | more.pop("details", {})
    base = {
        "status": "ok" if value is not None else "not_measurable",
        "unit": "s",
        "better": "lower",
        "window": "ProfilerStep",
        "ranks": [0, 1],
        "provenance": Provenance("0.1.0", more.pop("revision", 1)),
    }
    return Result(metric, value=value, details=details, **(base | more))


def mean_of(*steps: float, **more: Any) -> Result:
    """Return a result whose value is the mean of its steps."""
    return result(sum(steps) / len(steps), *steps, **more)


def error(code: str) -> ResultFinding:
    """Return a finding that makes a number doubtful."""
    return ResultFinding(code, "error", "something is wrong")
