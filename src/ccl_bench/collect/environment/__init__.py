"""What a run ran on: machine, software, environment variables and the state of the working directory.

`capture` makes the whole record and `machine` asks the sources of one node. `probe` runs inside the
environment of the recorded command, which need not hold ccl-bench.
"""
