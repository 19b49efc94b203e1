"""The historical entry points: each a few lines over `ccl_bench`, which is taken from this checkout."""

import sys
from pathlib import Path

_SOURCE = str(Path(__file__).resolve().parent.parent / "src")
if _SOURCE not in sys.path:
    sys.path.insert(0, _SOURCE)
