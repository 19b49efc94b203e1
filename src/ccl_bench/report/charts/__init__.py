"""Shapes of charts as Vega-Lite specifications with their data inside; what they mean is told elsewhere."""
