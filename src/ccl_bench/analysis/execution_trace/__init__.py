"""Execution Traces joined to the Kineto traces of the same ranks.

`linking` pairs their operators, `calls` their communication calls; `findings` reports where they disagree.
"""
