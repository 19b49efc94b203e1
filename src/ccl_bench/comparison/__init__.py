"""Runs side by side: whether they compare, what changed beyond noise, and where a step got longer.

Arithmetic on results and cards; how a comparison looks is in `ccl_bench.report.comparison`.
"""

from ccl_bench.comparison.comparability import (
    Comparability,
    Difference,
    comparison_key,
    fields_of,
    find_differences,
    judge_comparability,
    unknown_fields,
)

__all__ = [
    "Comparability",
    "Difference",
    "comparison_key",
    "fields_of",
    "find_differences",
    "judge_comparability",
    "unknown_fields",
]
