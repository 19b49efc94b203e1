"""The lowest package: errors, findings, units, registries of named things, polars on demand.

Nothing here imports another package of ccl-bench.
"""
