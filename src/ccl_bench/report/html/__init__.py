"""Pages of HTML that open without a network: the frame, and charts, tables and sections inside it."""

from ccl_bench.report.html.frame import html_page
from ccl_bench.report.html.pieces import figure, findings, folded, numbers, section, table

__all__ = ["figure", "findings", "folded", "html_page", "numbers", "section", "table"]
