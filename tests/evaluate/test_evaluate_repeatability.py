"""The same run gives the same bytes, however it was computed."""

import json
from functools import cache
from pathlib import Path

import pytest
from commands import recorded_by
from small_runs import measured, trace, write

from ccl_bench import metrics, result
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.trace.cache import is_cached


def everything(folder, **how) -> bytes:
    """Return the results of every metric as JSON."""
    return result.to_json(evaluate(open_run(folder), metrics.load().names(), **how))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example as two of its ranks recorded it."""
    return recorded_by((0, 1), tmp_path_factory.mktemp("repeated") / "run")


@cache
def fresh(folder: Path) -> list[result.Result]:
    """Return every metric, evaluated in this process without the cache."""
    return measured(folder, *metrics.load().names())


def test_sums_over_many_ranks_do_not_depend_on_an_order(tmp_path):
    for rank in range(8):
        whole = trace(rank, world=8, length=100 + 7 * rank, steps=(1, 2))
        write(tmp_path / f"kineto_trace_{rank}.json", whole)
    names = ("gpu_busy", "gpu_idle", "comm_comp_overlap", "sm")

    assert len({result.to_json(measured(tmp_path, *names)) for _ in range(2)}) == 1


def test_two_evaluations_and_tables_from_the_cache_give_the_same_bytes(run: Path):
    filling = everything(run, jobs=1)

    assert all(is_cached(trace) for trace in open_run(run).traces)
    assert everything(run, jobs=1) == filling == result.to_json(fresh(run))


def test_a_pool_of_processes_gives_the_same_bytes(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ccl_bench.engine.engines.POOL_WORTH_BYTES", 0)

    assert everything(run, use_cache=False, jobs=2) == result.to_json(fresh(run))


def test_a_metric_alone_and_among_others_gives_the_same_result(run: Path):
    among = {found.metric: found for found in fresh(run)}

    alone = {
        name: measured(run, name)[0] for name in ("gpu_busy", "mfu", "training_quality", "coll_call_num")
    }

    assert alone == {name: among[name] for name in alone}


def test_results_fit_the_published_schema(run: Path):
    import jsonschema

    text = result.to_json(fresh(run))

    schema = result.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_results_come_back_from_json_as_they_were(run: Path):
    assert result.from_json(result.to_json(fresh(run))) == fresh(run)


def test_json_holds_no_number_that_json_does_not_have(run: Path):
    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    json.loads(result.to_json(fresh(run)), parse_constant=refuse)
