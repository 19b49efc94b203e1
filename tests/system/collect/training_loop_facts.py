"""What can be said of `training_loop.py` without running it."""

TIMED = range(2, 6)
"""After 2 skipped steps, 4 timed."""
ACTIVE = range(7, 10)
"""After 1 more in which the profiler warms up, 3 recorded."""
OBSERVED = range(10, 11)
LENGTH = 13
"""11 steps of the schedule, and 2 after it."""
ALL_REDUCES, ALL_GATHERS = 3, 1
TOKENS = 4096
SEEN = "profile_trace/iteration_10/rank0_trace.json"
"""The window is named by the steps that were run when it ended: 2 + 4 + 1 + 3."""
