"""Charts as Vega-Lite specifications, with their data inside.

`bars` has bars, stacked bars and heat maps, and the axes that all share; `lines` has lines, bands, curves
and points; `flames` has flame graphs and stacked areas. Sections explain the charts.
"""
