"""A run: a directory with a card and traces, and the facts that both state.

`open` finds what a directory holds, `documents` reads what people wrote, `facts` merges it. `completeness`,
`grouping` and `copies` check the traces: whether they are whole, of one run, and recorded together.
"""

from ccl_bench.run.open import ENVIRONMENT, PROFILE_MODES, REPORT, Run, discover_run, open_run

__all__ = ["ENVIRONMENT", "PROFILE_MODES", "REPORT", "Run", "discover_run", "open_run"]
