"""The commands: parse, call the library, print."""

PROGRAM = "ccl-bench"
"""The command beside `ccl-metrics`, as it calls itself in what it says."""
