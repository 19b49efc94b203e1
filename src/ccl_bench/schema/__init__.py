"""The raw tables of a trace: their columns, types and meanings.

`tables` declares them all, `table` is what a table is.
"""

from ccl_bench.schema.table import KEYS, Column, Table
from ccl_bench.schema.tables import TABLES

__all__ = ["KEYS", "TABLES", "Column", "Table"]
