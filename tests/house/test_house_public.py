"""The public names of the package: found, and loaded only when they are used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import ccl_bench


@pytest.mark.parametrize("name", ccl_bench.PUBLIC)
def test_a_public_name_is_the_one_of_its_module(name: str) -> None:
    assert getattr(ccl_bench, name) is getattr(import_module(ccl_bench.PUBLIC[name]), name)


def test_importing_the_package_loads_none_of_its_modules() -> None:
    code = "import sys, ccl_bench; print([m for m in sys.modules if m.startswith('ccl_bench.')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'polars'"):
        _ = ccl_bench.polars
