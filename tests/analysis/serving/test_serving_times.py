"""Times of single requests, on tables made by hand."""

from __future__ import annotations

import polars as pl
import pytest

from ccl_bench.analysis.serving.benchmark import gaps, latencies, times_per_output_token, times_to_first_token

REQUESTS = pl.DataFrame(
    {
        "output_tokens": [1, 2, 5, 4, 3, None, 2],
        "ttft_s": [0.25, 0.5, 1.0, 2.0, None, 1.0, 3.0],
        "latency_s": [1.0, 0.75, 2.0, 2.0, 4.0, 5.0, None],
        "gaps_s": [[], [0.25], [0.5, 0.5], None, [1.0], [], [2.0]],
    }
)


def test_the_time_per_token_leaves_out_the_first_and_needs_a_second_that_came_later() -> None:
    # the first request has one token, the fourth came at once, and the last three lack a number each
    assert times_per_output_token(REQUESTS) == pytest.approx([0.25 / 1, 1.0 / 4])


def test_times_that_are_not_known_are_left_out() -> None:
    assert times_to_first_token(REQUESTS) == [0.25, 0.5, 1.0, 2.0, 1.0, 3.0]
    assert latencies(REQUESTS) == [1.0, 0.75, 2.0, 2.0, 4.0, 5.0]
    assert gaps(REQUESTS) == [0.25, 0.5, 0.5, 1.0, 2.0]
