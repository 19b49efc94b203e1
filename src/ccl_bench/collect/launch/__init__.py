"""Run the recorded command.

`process` runs it and forwards output and signals, `nsys` puts Nsight Systems in front of it and finds the
ranks in its reports, `failures` finds out why it failed.
"""
