"""The index follows the files, whatever happens to it, on either database."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from leaderboard_bundles import Made, added, changed, many, placed
from sqlalchemy import select

from ccl_bench.leaderboard.store import State, new_event, open_store
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.store.query_result import find_run, find_runs
from ccl_bench.leaderboard.store.tables import RUNS, VALUES, WORKLOADS
from ccl_bench.result import Provenance, Result

if TYPE_CHECKING:
    from ccl_bench.leaderboard.store import Store

FAST, SLOW = (Made(name=name, values={"mfu": value}) for name, value in (("fast", 50.0), ("slow", 30.0)))


def _everything(store: Store) -> list[list[tuple[Any, ...]]]:
    keys = (WORKLOADS.c.key, RUNS.c.id, VALUES.c.run)
    with store.engine.connect() as connection:
        return [sorted(map(tuple, connection.execute(select(key.table).order_by(key)))) for key in keys]


def _names(store: Store, **asked: Any) -> list[str]:
    with store.engine.connect() as connection:
        found = find_runs(connection, RunQuery(sort="mfu", **asked))
    return [listed.run["name"] for listed in found.runs]


def _place(store: Store, run: str) -> int | None:
    with store.engine.connect() as connection:
        listed = find_run(connection, run)
    assert listed is not None
    return listed.numbers["mfu"].place


def test_an_index_that_was_thrown_away_comes_back_the_same(store: Store) -> None:
    runs = placed(store.data, list(many(16, workloads=8)))
    store.catch_up()
    store.record(runs[3], new_event(State.WITHDRAWN, "Ada Lovelace", "wrong clock"))
    store.record(runs[4], new_event(State.SUPERSEDED, "Ada Lovelace", superseded_by=runs[5]))
    before = _everything(store)
    assert len(before[1]) == 16
    store.rebuild()
    assert _everything(store) == before


def test_runs_one_by_one_give_the_same_index_as_all_at_once(store: Store) -> None:
    runs = placed(store.data, list(many(12)))
    for run in reversed(runs):
        store.index([run])
    before = _everything(store)
    store.rebuild()
    assert _everything(store) == before


def test_what_somebody_puts_into_the_folder_is_found(store: Store) -> None:
    added(store, FAST)
    placed(store.data, [SLOW])
    assert _names(store) == ["fast"]
    store.catch_up_if_changed()
    assert _names(store) == ["fast", "slow"]


def test_what_somebody_takes_out_of_the_folder_is_gone(store: Store) -> None:
    run, other = added(store, FAST), added(store, SLOW)
    shutil.rmtree(store.folder / run)
    store.catch_up_if_changed()
    assert _names(store) == ["slow"]
    assert _place(store, other) == 1


def test_a_withdrawn_run_keeps_its_page_and_history_and_loses_its_rank(store: Store) -> None:
    run, other = added(store, FAST), added(store, SLOW)
    assert (_place(store, run), _place(store, other)) == (1, 2)
    store.record(run, new_event(State.WITHDRAWN, "Ada Lovelace", "wrong clock"))
    assert _names(store) == ["slow"]
    assert _names(store, state="withdrawn") == ["fast"]
    assert (_place(store, run), _place(store, other)) == (None, 1)
    assert [each.state for each in store.bundle(run).history] == ["self_reported", "withdrawn"]


def test_a_run_in_quarantine_is_shown_nowhere(store: Store) -> None:
    run = added(store, changed(FAST, state=State.QUARANTINED))
    assert _names(store) == []
    with store.engine.connect() as connection:
        assert find_run(connection, run) is None
    store.record(run, new_event(State.SELF_REPORTED, "server"))
    assert _names(store) == ["fast"]


def test_a_bundle_that_nobody_gave_a_history_is_self_reported(store: Store) -> None:
    (run,) = placed(store.data, [FAST])
    (store.folder / run / "history.json").unlink()
    store.catch_up()
    with store.engine.connect() as connection:
        listed = find_run(connection, run)
    assert listed is not None
    assert listed.run["state"] == "self_reported"
    assert listed.run["submitted_at"] == "2026-01-01T00:00:00Z"


def test_many_at_once_lose_nothing_and_double_nothing(store: Store) -> None:
    made = [changed(FAST, name=f"run {place}", values={"mfu": float(place)}) for place in range(12)]
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda each: added(store, each), [*made, *made]))
    assert store.count == len(set(runs)) == 12
    assert sorted(_place(store, run) or 0 for run in set(runs)) == list(range(1, 13))


def test_a_second_process_sees_the_same_store(store: Store, index_database: str | None) -> None:
    added(store, FAST)
    other = open_store(store.data, index_database)
    added(other, SLOW)
    assert _names(store) == _names(other) == ["fast", "slow"]
    other.engine.dispose()


def test_hostile_texts_are_kept_out_of_the_index_or_are_harmless_in_it(store: Store) -> None:
    nasty = "x'); DROP TABLE runs; -- <script>alert(1)</script> \u202e"
    added(store, changed(FAST, model=nasty, submitter="a\tb", description="d" * 100_000))
    assert _names(store, q="drop table") == ["fast"]
    assert _names(store, model=[nasty]) == _names(store, model=[nasty.replace("\u202e", "?")]) == ["fast"]


def test_a_workload_is_called_the_same_however_its_first_run_spells_it(store: Store) -> None:
    odd = [changed(FAST, name=name, model=name) for name in ("My Model", "my-model", "MY_MODEL")]
    runs = [added(store, each) for each in odd]
    before = _everything(store)
    assert len(before[0]) == 1
    assert "my-model" in before[0][0][1]
    for run in runs:
        store.index([run])
    assert _everything(store) == before


def test_a_workload_without_runs_is_gone(store: Store) -> None:
    shutil.rmtree(store.folder / added(store, FAST))
    store.catch_up()
    assert _everything(store) == [[], [], []]


def test_numbers_that_no_column_holds_are_left_out(store: Store) -> None:
    odd = (
        Result("mfu", "ok", "%", "higher", 1.0, provenance=Provenance("0.1.0", 2**70)),
        Result("a\tb", "ok", "s" * 1000, "lower", 1e308),
        Result("a b", "ok", "s", "lower", 2.0),
        Result("x" * 1000, "ok", "s", "lower", 5e-324),
    )
    run = added(store, changed(FAST, devices=10**9, values={}, extra=odd))
    with store.engine.connect() as connection:
        listed = find_run(connection, run)
    assert listed is not None
    assert {name[:3]: number.value for name, number in listed.numbers.items()} == {
        "mfu": 1.0,
        "a b": 2.0,
        "xxx": 5e-324,
    }
