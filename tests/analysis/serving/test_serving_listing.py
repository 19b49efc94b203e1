"""What details and charts keep of many times: percentiles of all, and single ones from beginning to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from serving_files import measured, vllm

from ccl_bench.metrics.shared.serving import MOST_LISTED

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS, GAPS = 400, 50
"""20,000 gaps: a server that slows down, so that the first 5,000 are all shorter than the median."""


@pytest.fixture
def details(tmp_path: Path) -> dict:
    """Return the details of ITL where gap number n takes n us."""
    gaps = [[(GAPS * row + place) * 1e-6 for place in range(GAPS)] for row in range(REQUESTS)]
    lists = {
        "ttfts": [0.1] * REQUESTS,
        "itls": gaps,
        "output_lens": [GAPS + 1] * REQUESTS,
        "input_lens": [1] * REQUESTS,
    }
    whole = vllm(**lists, errors=None, completed=REQUESTS, mean_ttft_ms=100, mean_tpot_ms=None)
    (result,) = measured(tmp_path, "ITL", bench__json=whole)
    return result.details


def test_the_curve_is_of_all_gaps_and_not_of_the_first(details: dict) -> None:
    # Of 0, 1, ... 19,999 us the percentile p is p/100 * 19,999 us.
    expected = [share / 100 * (REQUESTS * GAPS - 1) * 1e-6 for share in range(101)]
    assert details["percentiles_s"] == pytest.approx(expected)
    assert details["percentiles_s"][50] == pytest.approx(details["distribution_s"]["p50"])


def test_single_times_are_from_the_whole_benchmark(details: dict) -> None:
    listed = details["values_s"]
    assert len(listed) == MOST_LISTED
    assert listed == sorted(listed)
    assert (listed[0], listed[-1]) == pytest.approx((0.0, (REQUESTS * GAPS - 4) * 1e-6))
    assert sum(listed) / len(listed) == pytest.approx(details["distribution_s"]["mean"], rel=1e-3)
