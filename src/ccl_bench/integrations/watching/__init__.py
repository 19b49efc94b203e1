"""Traces measured as a training writes them.

`windows` finds the recording windows of a directory and which of them are written, `watch` measures each once
and keeps its results, and `gauges` gives the numbers to Prometheus and OpenTelemetry.
"""
