"""The rules of `ccl-bench diagnose`, one module each.

Each module holds a function with the decorator `rule`. It returns an opportunity with its gain, or None.
"""
