"""What programs and notebooks use, and what the commands are built on: a run, opened once, and its answers.

`measured_run` opens a run and asks it, `tables` gives its tables as frames, `comparison` compares runs, and
`charts` are the drawings of a report one by one. `display` shows all of these in a notebook.
"""
