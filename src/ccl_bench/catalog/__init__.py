"""Facts with a source, kept as data files: devices, dtypes, collectives, models and kernel types.

Each module reads the data file of its own name, and gives its rows as typed objects. `data_files` reads them.
"""

from ccl_bench.catalog.data_files import load_data

__all__ = ["load_data"]
