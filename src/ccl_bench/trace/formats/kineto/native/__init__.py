"""The native reader of Kineto events: C that fills columns, loaded without being linked to Python.

Without it everything is read by the decoder of `pieces`, to the same tables, in four times the time.
"""
