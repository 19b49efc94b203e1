"""A plugin of pytest: the tests read traces with the native reader that an environment variable names."""

import os
from pathlib import Path

from ccl_bench.trace.native import library

VARIABLE = "CCL_BENCH_TESTED_LIBRARY"

library.LIBRARY_FILE = Path(os.environ[VARIABLE])
library._loaded.cache_clear()
assert library.absence() is None, library.absence()
