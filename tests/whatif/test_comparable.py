"""The ideal time of an operation is the median of the others, as the statistics of Python compute it."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.whatif.comparable import _Groups

VALUES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=12)


@given(VALUES)
def test_the_median_of_a_group_is_that_of_its_values_that_count(values: list[tuple[int, int, bool]]) -> None:
    number, ns = (
        np.array([value[part] for value in values], dtype=kind) for part, kind in ((0, int), (1, float))
    )
    counts = np.array([value[2] for value in values], dtype=bool)
    groups = _Groups.of(number, ns, np.argsort(ns))
    for some, mask in ((counts, counts), (np.ones_like(counts), None)):
        medians = groups.medians(mask)[groups.of_value]
        for place in range(len(values)):
            counted = ns[(number == number[place]) & some].tolist()
            expected = median(counted) if counted else np.nan
            assert medians[place] == pytest.approx(expected, nan_ok=True)
