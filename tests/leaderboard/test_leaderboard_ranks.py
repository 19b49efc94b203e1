"""Only comparable numbers are ranked against each other: checked against plain Python."""

from __future__ import annotations

import math
import shutil
from collections import Counter, defaultdict
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from leaderboard_bundles import DERIVED_UNITS, UNITS, Made, added, changed, many, placed
from sqlalchemy import select

from ccl_bench.leaderboard.store import State, new_event
from ccl_bench.leaderboard.store.query_result import find_run
from ccl_bench.leaderboard.store.rows import COUNTED, _rank_key
from ccl_bench.leaderboard.store.tables import GROUPED, RANK_COUNTS, RUN_COUNTS, RUN_GROUPS, RUNS
from ccl_bench.result import ResultFinding

if TYPE_CHECKING:
    from ccl_bench.leaderboard.store import Store
    from ccl_bench.leaderboard.store.query_result import RunNumber

RUN = Made(values={"mfu": 40.0, "iteration_wall_clock_time": 2.0, "coll_call_num": 7.0})
ERROR = ResultFinding("ranks-missing", "error", "3 of 8 ranks are missing")
WARNING = ResultFinding("clock-skew", "warning", "clocks differ")


def _numbers(store: Store, run: str) -> dict[str, RunNumber]:
    with store.engine.connect() as connection:
        listed = find_run(connection, run)
    assert listed is not None
    return listed.numbers


def _standing(store: Store, run: str, metric: str) -> tuple[int | None, int | None]:
    number = _numbers(store, run)[metric]
    return number.place, number.ranked


def test_ranks_are_those_of_a_plain_count(store: Store) -> None:
    made = list(many(60, workloads=12))
    runs = placed(store.data, made)
    store.catch_up()
    together: dict[Any, list[float]] = defaultdict(list)
    for each in made:
        for metric, value in each.shown.items():
            together[each.phase, each.model, each.precision, each.batch, metric].append(value)
    for run, each in zip(runs, made, strict=True):
        found = _numbers(store, run)
        assert set(found) == set(each.shown)
        for metric, value in each.shown.items():
            others = together[each.phase, each.model, each.precision, each.batch, metric]
            better = (UNITS | DERIVED_UNITS)[metric][1]
            ahead = sum(other < value if better == "lower" else other > value for other in others)
            expected = (None, None) if better == "neither" else (ahead + 1, len(others))
            assert (found[metric].place, found[metric].ranked) == expected


@pytest.mark.parametrize(
    "other",
    [
        {"precision": "fp8"},
        {"batch": 64},
        {"seq_len": 8192},
        {"model": "llama-3.1-70b"},
        {"revision": 99},
        {"window": "whole trace"},
    ],
    ids=str,
)
def test_numbers_of_different_work_or_measure_are_ranked_apart(small: Store, other: dict[str, Any]) -> None:
    first = added(small, RUN)
    second = added(small, changed(RUN, **other, values={"mfu": 90.0}))
    assert _standing(small, first, "mfu") == (1, 1)
    assert _standing(small, second, "mfu") == (1, 1)
    assert not _numbers(small, second)["mfu"].is_best


@pytest.mark.parametrize("other", [{"revision": 99}, {"window": "whole trace"}], ids=str)
def test_derived_numbers_are_ranked_apart_where_what_they_follow_from_is(
    small: Store, other: dict[str, Any]
) -> None:
    served = changed(RUN, phase="inference", values={"TPOT": 0.02}, findings=(WARNING,))
    first, second = added(small, served), added(small, changed(served, **other, values={"TPOT": 0.01}))
    assert _standing(small, first, "interactivity") == _standing(small, second, "interactivity") == (1, 1)
    assert _numbers(small, first)["interactivity"].doubts == 1


@pytest.mark.parametrize(
    "other",
    [{"hardware": "B200"}, {"devices": 64}, {"tp": 8}, {"framework": "vllm"}, {"library": "RCCL"}],
    ids=str,
)
def test_what_people_compare_is_ranked_together(small: Store, other: dict[str, Any]) -> None:
    first = added(small, RUN)
    second = added(small, changed(RUN, **other, values={"mfu": 90.0}))
    assert _standing(small, first, "mfu") == (2, 2)
    assert _standing(small, second, "mfu") == (1, 2)
    assert _numbers(small, second)["mfu"].is_best


def test_one_spelling_of_a_model_is_as_good_as_another(store: Store) -> None:
    first = added(store, changed(RUN, model="meta-llama/Llama-3.1-8B"))
    second = added(store, changed(RUN, model="llama-3.1-8b", values={"mfu": 10.0}))
    assert _standing(store, first, "mfu") == (1, 2)
    assert _standing(store, second, "mfu") == (2, 2)


def test_equal_numbers_share_a_rank(store: Store) -> None:
    runs = [added(store, changed(RUN, name=str(n), values={"mfu": v})) for n, v in enumerate((50, 50, 40))]
    assert [_standing(store, run, "mfu") for run in runs] == [(1, 3), (1, 3), (3, 3)]


def test_a_number_that_an_error_makes_doubtful_is_not_ranked(store: Store) -> None:
    good = added(store, RUN)
    bad = added(store, changed(RUN, values={"mfu": 90.0}, findings=(ERROR, WARNING)))
    assert _standing(store, good, "mfu") == (1, 1)
    assert _standing(store, bad, "mfu") == (None, None)
    assert _numbers(store, bad)["mfu"].doubts == 2


def test_a_run_whose_card_does_not_say_what_was_run_is_not_ranked(store: Store) -> None:
    run = added(store, changed(RUN, model=""))
    assert _standing(store, run, "mfu") == (None, None)


def test_verified_and_self_reported_runs_are_ranked_together(store: Store) -> None:
    first = added(store, RUN)
    second = added(store, changed(RUN, name="other", state=State.VERIFIED))
    assert _standing(store, first, "mfu") == _standing(store, second, "mfu") == (1, 2)


def test_a_submitter_cannot_turn_a_metric_round(store: Store) -> None:
    from ccl_bench.metrics import METRICS
    from ccl_bench.result import Provenance, Result

    made_by = Provenance("0.1.0", METRICS.get("mfu").revision)
    turned = Result("mfu", "ok", "%", "lower", 1.0, window="ProfilerStep", provenance=made_by)
    good = added(store, RUN)
    bad = added(store, changed(RUN, values={}, extra=(turned,)))
    assert _standing(store, good, "mfu") == (1, 2)
    assert _standing(store, bad, "mfu") == (2, 2)


def test_the_same_number_in_another_unit_is_not_kept_twice(store: Store) -> None:
    from ccl_bench.result import Provenance, Result

    twice = Result("comm_comp_overlap_16", "ok", "ratio", "higher", 0.5, provenance=Provenance("0.1.0", 1))
    run = added(store, changed(RUN, extra=(twice,)))
    assert set(_numbers(store, run)) == set(RUN.values)


EXTREMES = (0.0, -0.0, 5e-324, -5e-324, 1.0, math.nextafter(1.0, 2.0), -1.0, 1.7e308, -1.7e308, 99.1, 99.2)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(EXTREMES), min_size=2))
@example(list(EXTREMES))
def test_rank_keys_order_numbers_as_their_values_do(values: list[float]) -> None:
    for better, sign in (("lower", 1), ("higher", -1)):
        keys = [_rank_key(value, better) for value in values]
        assert all(-(2**63) <= key < 2**63 for key in keys)
        for (one, key), (other, its) in product(zip(values, keys, strict=True), repeat=2):
            assert (key < its) == (sign * one < sign * other)


NEAR = st.integers(0, 40).map(lambda step: 99.0 + step * 2.0**-14)
"""Numbers so close that some share even a fine span, and some are equal."""


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(NEAR | st.floats(-1e6, 1e6), min_size=1, max_size=12), st.data())
def test_ranks_and_counts_stay_those_of_a_plain_count_as_runs_come_and_go(
    store: Store, values: list[float], data: st.DataObject
) -> None:
    names = (f"{place}" for place in range(len(values)))
    runs = {
        added(store, changed(RUN, name=name, values={"straggler": value})): value
        for name, value in zip(names, values, strict=True)
    }
    for run in data.draw(st.lists(st.sampled_from(sorted(runs)), unique=True)):
        store.record(run, new_event(State.WITHDRAWN, "Ada Lovelace"))
        del runs[run]
    for run, value in runs.items():
        expected = (1 + sum(other < value for other in runs.values()), len(runs))
        assert _standing(store, run, "straggler") == expected
    _check_counts(store)
    for folder in store.folders():
        shutil.rmtree(store.folder / folder)
    store.catch_up()
    with store.engine.connect() as connection:
        tables = (RUN_COUNTS, RUN_GROUPS, RANK_COUNTS)
        assert [connection.execute(select(table)).all() for table in tables] == [[], [], []]


def _check_counts(store: Store) -> None:
    """Find what is kept of the runs equal to what the rows of the runs give."""
    with store.engine.connect() as connection:
        every = connection.execute(select(RUNS)).mappings().all()
        groups = connection.execute(select(RUN_GROUPS)).mappings().all()
        kept = {tuple(row[:3]): row[3] for row in connection.execute(select(RUN_COUNTS))}
    names = ("is_listed", "state", *GROUPED)
    grouped = Counter(tuple(row[name] for name in names) for row in every)
    assert {tuple(row[name] for name in names): row["count"] for row in groups} == grouped
    rows = [row for row in every if row["is_listed"]]
    fields = [
        (row["phase"], name, str(row[name])) for row in rows for name in COUNTED if row[name] is not None
    ]
    assert kept == Counter([*fields, *((row["phase"], "", "") for row in rows)])
