"""Training steps and inference iterations.

`steps` defines their windows and lengths, `marks` finds what in a trace shows them, `choice` keeps those that
the user chose, and `findings` reports unmarked, unequal and outlying ones.
"""
