"""A run: a directory with a card and traces, and what both say about it.

`open` finds what lies at a place, `stated` reads what people wrote, `facts` merges it, `completeness` and
`one_run` check the set of traces.
"""

from ccl_bench.run.open import ENVIRONMENT, PROFILE_MODES, Run, discover_run, open_run

__all__ = ["ENVIRONMENT", "PROFILE_MODES", "Run", "discover_run", "open_run"]
