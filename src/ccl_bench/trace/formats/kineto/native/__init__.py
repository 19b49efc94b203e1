"""The native reader of Kineto events: C that fills columns, loaded without being linked to Python.

Without it `decoding` reads everything, to the same tables, in four times the time.
"""
