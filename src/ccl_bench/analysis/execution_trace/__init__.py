"""Execution Traces joined to the Kineto traces of the same ranks."""
