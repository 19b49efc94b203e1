"""The `nsys` of this machine, for tests that need it."""

import shutil

import pytest

NSYS = shutil.which("nsys")

needs_nsys = pytest.mark.skipif(
    NSYS is None, reason="nsys is not installed: apt-get install nsight-systems (contrib and non-free)"
)
