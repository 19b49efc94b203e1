"""Every table that a trace is turned into: its columns, their types, and what they mean.

`tables` declares them all, `table` is what a table is.
"""

from ccl_bench.schema.table import KEYS, Column, Table
from ccl_bench.schema.tables import TABLES

__all__ = ["KEYS", "TABLES", "Column", "Table"]
