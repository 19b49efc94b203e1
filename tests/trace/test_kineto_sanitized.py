"""The native reader passes some of its own tests where each access to memory is watched.

`make fuzz` lets it pass all of them: sanitized_tests.py.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest
from both_ways import needs_native
from sanitized_tests import own_tests

if TYPE_CHECKING:
    from pathlib import Path

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: apt-get install gcc")
pytestmark = [needs_native, needs_gcc]


def test_some_of_its_own_tests_pass_under_the_sanitizers(watched_library: Path) -> None:
    done = own_tests(watched_library, ("native",), "ordinary or unusual or escapes or names")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 30
