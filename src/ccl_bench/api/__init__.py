"""The Python API, on which the commands are built: a run, opened once, and its answers.

`measured_run` opens a run and computes its answers, `tables` returns its tables as frames, `comparison`
compares runs, and `charts` returns single charts of a report. `display` shows all of these in a notebook.
"""
