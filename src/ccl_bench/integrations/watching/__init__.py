"""Measurement of traces while a training writes them.

`windows` finds the recording windows of a directory and detects complete ones, `watch` measures each once and
stores its results, and `gauges` exports the values to Prometheus and OpenTelemetry.
"""
