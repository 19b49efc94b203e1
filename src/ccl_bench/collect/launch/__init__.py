"""Execution of the recorded command.

`process` runs it and forwards output and signals, `nsys` wraps it with Nsight Systems and finds the ranks in
the reports, `failures` determines why it failed.
"""
