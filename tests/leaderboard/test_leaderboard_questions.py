"""Questions are answered as plain Python would, and text in them is never more than text."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from databases import create_database
from leaderboard_bundles import Made, added, changed, many, placed
from pydantic import ValidationError
from sqlalchemy import inspect

from ccl_bench.leaderboard.store import open_store, query_result
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.store.query_result import (
    count_phases,
    filter_options,
    find_runs,
    iterate_runs,
    measured_metrics,
    unit_and_direction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccl_bench.leaderboard.store import Store

HOSTILE = (
    "'; DROP TABLE runs; --",
    '" OR 1=1 --',
    "%",
    "_",
    "\\",
    "'",
    "x' UNION SELECT * FROM runs --",
    "${7*7}",
    "{{7*7}}",
    "\x00",
    "\u202e",
)


MADE = list(many(80))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Return a store with 80 runs, for tests that only read."""
    is_sqlite = request.param == "sqlite"
    database = (
        None if is_sqlite else create_database(request.getfixturevalue("postgresql_server"), "questions")
    )
    found = open_store(tmp_path_factory.mktemp("questions"), database)
    placed(found.data, MADE)
    found.catch_up()
    yield found
    found.engine.dispose()


def _names(store: Store, **asked: Any) -> list[str]:
    with store.engine.connect() as connection:
        return [each.run["name"] for each in find_runs(connection, RunQuery(size=500, **asked)).runs]


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({"phase": "training"}, lambda m: m.phase == "training"),
        ({"model": ["deepseek-ai/DeepSeek-V3"]}, lambda m: m.model == "deepseek-v3"),
        ({"hardware": ["MI300X", "B200"]}, lambda m: m.hardware in {"MI300X", "B200"}),
        ({"framework": ["vllm"]}, lambda m: m.framework == "vllm"),
        ({"communication_library": ["MSCCL++"]}, lambda m: m.library == "MSCCL++"),
        ({"precision": ["fp8"], "tp": 2}, lambda m: m.precision == "fp8" and m.tp == 2),
        ({"pp": 2, "device_count": 16}, lambda m: m.pp == 2 and m.devices == 16),
        ({"q": "hopper"}, lambda m: m.submitter == "Grace Hopper"),
        ({"q": "HOPPER vllm"}, lambda m: m.submitter == "Grace Hopper" and m.framework == "vllm"),
        ({"state": "verified"}, lambda m: m.state == "verified"),
    ],
    ids=lambda value: "plain-python" if callable(value) else str(value),
)
def test_a_filter_gives_what_plain_python_gives(
    full: Store, asked: dict[str, Any], fits: Callable[[Made], bool]
) -> None:
    expected = {each.name for each in MADE if fits(each)}
    assert 0 < len(expected) < len(MADE)
    assert set(_names(full, **asked)) == expected


@pytest.mark.parametrize(("metric", "falls"), [("mfu", True), ("TTFT", False), ("coll_call_num", True)])
def test_sorting_by_a_metric_puts_the_best_first_and_runs_without_it_last(
    full: Store, metric: str, falls: bool
) -> None:
    known = sorted((m.values[metric] for m in MADE if metric in m.values), reverse=falls)
    values = {each.name: each.values.get(metric) for each in MADE}
    found = [values[name] for name in _names(full, sort=metric)]
    assert found == [*known, *[None] * (len(MADE) - len(known))]


@pytest.mark.parametrize("at_once", [0, 100], ids=["along-an-index", "all-sorted"])
@pytest.mark.parametrize("together", ["yes", "no"])
def test_a_filtered_table_has_one_order_however_it_is_read(
    full: Store, monkeypatch: pytest.MonkeyPatch, at_once: int, together: str
) -> None:
    monkeypatch.setattr(query_result, "_SORTED_AT_ONCE", at_once)
    asked: dict[str, Any] = {"framework": ["vllm"], "sort": "mfu", "together": together}
    fits = [each for each in MADE if each.framework == "vllm"]
    pages: list[str] = []
    for page in range(1, 10):
        with full.engine.connect() as connection:
            answer = find_runs(connection, RunQuery(**asked, size=7, page=page))
        assert answer.total == len(fits)
        pages += [each.run["name"] for each in answer.runs]
    assert sorted(pages) == sorted(each.name for each in fits)
    of_name = {each.name: each for each in fits}
    if together == "yes":
        groups = [(m.phase, m.model, m.precision, m.batch) for m in map(of_name.__getitem__, pages)]
        assert len([*groupby(groups)]) == len(set(groups))
    else:
        values = [of_name[name].values.get("mfu") for name in pages]
        measured = sorted((value for value in values if value is not None), reverse=True)
        assert values == [*measured, *[None] * (len(values) - len(measured))]


def test_the_order_can_be_turned_round(full: Store) -> None:
    values = {each.name: each.values["gpu_busy"] for each in MADE}
    rising = [values[name] for name in _names(full, sort="gpu_busy", order="asc")]
    assert rising == sorted(rising)
    assert [values[name] for name in _names(full, sort="gpu_busy", order="desc")] == rising[::-1]


def test_without_an_order_the_newest_run_comes_first(full: Store) -> None:
    days = {each.name: each.day for each in MADE}
    found = [days[name] for name in _names(full)]
    assert found == sorted(found, reverse=True)


def test_pages_hold_every_run_once(full: Store) -> None:
    found = []
    for page in range(1, 10):
        with full.engine.connect() as connection:
            answer = find_runs(connection, RunQuery(sort="mfu", together="yes", size=9, page=page))
        assert answer.total == 80
        found += [each.run["name"] for each in answer.runs]
    assert sorted(found) == sorted(each.name for each in MADE)


SORTS = ("mfu", "nobody_knows", "submitted_at", "model", "tp")


@pytest.mark.parametrize("together", ["yes", "no"])
@pytest.mark.parametrize("order", ["", "asc", "desc"])
@pytest.mark.parametrize("phase", ["", "training"])
def test_pages_read_from_an_index_are_those_that_sorting_all_runs_gives(
    full: Store, phase: str, order: str, together: str
) -> None:
    asked = {"phase": phase, "order": order, "together": together, "size": 7}
    for sort in SORTS:
        for page in (1, 12):
            question = RunQuery(**asked, sort=sort, page=page)
            narrowed = question.model_copy(update={"q": "run-"})  # every name begins so
            with full.engine.connect() as connection:
                assert find_runs(connection, question) == find_runs(connection, narrowed), question
    with full.engine.connect() as connection:
        assert filter_options(connection, question) == filter_options(connection, narrowed)


def test_runs_of_one_workload_stand_together(full: Store) -> None:
    with full.engine.connect() as connection:
        found = find_runs(connection, RunQuery(sort="gpu_busy", together="yes", size=500)).runs
    workloads = [each.run["workload"] for each in found]
    changes = sum(one != two for one, two in pairwise(workloads))
    assert changes == len(set(workloads)) - 1
    sizes = [each.workload_size for each in found]
    assert sizes == sorted(sizes, reverse=True)


def test_choices_say_how_many_runs_each_leaves(full: Store) -> None:
    question = RunQuery(phase="training", hardware=["H100"])
    with full.engine.connect() as connection:
        found = filter_options(connection, question)
    training = [each for each in MADE if each.phase == "training"]
    of_h100 = [each for each in training if each.hardware == "H100"]
    assert dict(found["framework"]) == {
        name: sum(each.framework == name for each in of_h100) for name in {each.framework for each in of_h100}
    }
    # What the column itself is narrowed down to does not hide its other values.
    assert sum(count for _, count in found["hardware"]) == len(training)
    assert [value for value, _ in found["tp"]] == sorted({str(m.tp) for m in of_h100}, key=int)


def test_only_metrics_with_a_number_are_offered(full: Store) -> None:
    with full.engine.connect() as connection:
        assert measured_metrics(connection) == sorted({name for each in MADE for name in each.shown})
        assert count_phases(connection) == {
            phase: sum(each.phase == phase for each in MADE) for phase in ("training", "inference")
        }
        assert unit_and_direction(connection, "mfu") == ("%", "higher")
        assert unit_and_direction(connection, "nobody_knows") == ("", "neither")


def test_an_empty_store_answers_too(store: Store) -> None:
    with store.engine.connect() as connection:
        assert find_runs(connection, RunQuery(sort="mfu", together="yes")).runs == []
        assert measured_metrics(connection) == []
        assert filter_options(connection, RunQuery())["model"] == []


@pytest.mark.parametrize("place", ["q", "model", "sort", "workload", "columns"])
def test_hostile_text_finds_nothing_and_changes_nothing(store: Store, place: str) -> None:
    added(store, Made(values={"mfu": 40.0}))
    for text in HOSTILE:
        question = RunQuery.model_validate({place: [text] if place in {"model", "columns"} else text})
        with store.engine.connect() as connection:
            found = find_runs(connection, question, question.columns or None)
            filter_options(connection, question)
            assert {"runs", "workloads", "metric_values"} <= set(inspect(connection).get_table_names())
        assert len(found.runs) == (1 if place in {"sort", "columns"} else 0), text
        assert store.count == 1


def test_a_percent_sign_is_looked_for_and_not_a_wildcard(store: Store) -> None:
    added(store, Made(name="plain"))
    added(store, Made(name="odd", description="at 100% load"))
    assert _names(store, q="100%") == ["odd"]
    assert _names(store, q="_") == []


@pytest.mark.parametrize(
    "asked", [{"page": 0}, {"size": 501}, {"tp": -1}, {"tp": 2**31}, {"phase": "x"}, {"q": "x" * 201}]
)
def test_a_question_out_of_bounds_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunQuery.model_validate(asked)


def test_empty_fields_of_a_form_ask_for_nothing() -> None:
    asked = {"tp": "", "model": [""], "q": "", "columns": [], "phase": ""}
    assert RunQuery.model_validate(asked) == RunQuery()


def test_everything_goes_over_all_pages(store: Store) -> None:
    placed(store.data, [changed(Made(), name=str(place)) for place in range(7)])
    store.catch_up()
    assert len(list(iterate_runs(store.engine, RunQuery(size=2, page=3)))) == 7
