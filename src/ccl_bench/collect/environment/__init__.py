"""The environment of a run: machine, software, variables and the state of the working directory.

`machine` queries the sources of one node. `probe` runs in the environment of the recorded command, which need
not contain ccl-bench.
"""
