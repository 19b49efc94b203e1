"""What a rank did and what each thing waited for: the rows of which the execution graph is made.

`operations` is the table; `dependencies` finds what waits for what.
"""
