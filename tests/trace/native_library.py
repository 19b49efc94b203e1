"""A plugin of pytest: the tests read traces with the native reader that an environment variable names."""

import os
from pathlib import Path

from ccl_bench.trace.formats.kineto.native import reader

VARIABLE = "CCL_BENCH_TESTED_LIBRARY"

reader.LIBRARY_FILE = Path(os.environ[VARIABLE])
reader._loaded.cache_clear()
assert reader.load_library() is not None, reader.absence()
