"""Reports of comparisons.

`text` writes a comparison for a terminal, `markdown` for the summary of a CI pipeline, `page` as HTML;
`phrases` holds the sentences that they share.
"""

from ccl_bench.report.comparison.text import page

__all__ = ["page"]
