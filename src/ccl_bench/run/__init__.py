"""A run: a directory with a card and traces, and the facts that both state.

`open` finds what lies at a place, `facts` reads what people wrote and merges it. `completeness`, `one_run`
and `windows` check the set of traces: whether it is whole, of one run, and recorded together.
"""

from ccl_bench.run.open import ENVIRONMENT, PROFILE_MODES, REPORT, Run, discover_run, open_run

__all__ = ["ENVIRONMENT", "PROFILE_MODES", "REPORT", "Run", "discover_run", "open_run"]
