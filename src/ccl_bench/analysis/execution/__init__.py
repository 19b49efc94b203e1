"""Operations of a rank and their dependencies, of which the execution graph is made.

`operations` is the table; `dependencies` finds what waits for what.
"""
