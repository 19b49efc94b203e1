"""The compiled library that readers in C share; it is not linked to Python.

Without it all is read by Python, to the same tables, in several times the time.
"""
