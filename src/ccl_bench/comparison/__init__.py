"""Comparisons of runs with a baseline: comparability, changes beyond noise, and step breakdown.

`load_results` loads two sides, each `run_results`. `compare` combines `comparability`, `changes` with their
`noise`, `step_breakdown` and `thresholds`. `baselines` stores named baselines.
`ccl_bench.report.comparison` formats the outcome.
"""

from ccl_bench.comparison.comparability import (
    Comparability,
    Difference,
    comparison_key,
    find_differences,
    judge_comparability,
    read_fields,
)

__all__ = [
    "Comparability",
    "Difference",
    "comparison_key",
    "find_differences",
    "judge_comparability",
    "read_fields",
]
