"""Shapes of charts as Vega-Lite specifications, with their data inside.

`bars` has bars, stacked bars and heat maps, `lines` has lines, bands, curves and points; both use `axes`.
Sections say what the charts mean.
"""
