"""How a comparison looks: as text and as a page of HTML."""

from ccl_bench.report.comparison.text import page

__all__ = ["page"]
