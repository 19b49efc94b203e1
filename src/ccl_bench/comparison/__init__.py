"""Runs side by side: whether they compare, what changed beyond noise, and where a step got longer.

Arithmetic on results and cards; how a comparison looks is in `ccl_bench.report.comparison`.
"""

from ccl_bench.comparison.comparable import Comparability, Difference, comparability, differences
from ccl_bench.comparison.fields import comparison_key, fields_of, unknown_fields

__all__ = [
    "Comparability",
    "Difference",
    "comparability",
    "comparison_key",
    "differences",
    "fields_of",
    "unknown_fields",
]
